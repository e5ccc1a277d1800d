"""What a simulated run says: a flat summary, rows of requests, and the point of a study; stable keys."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from experiments.serving_run import Alone, ServingRun
from slob_opt.metrics.goodput import Slo
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.satisfaction import SatisfactionSpec
from slob_opt.metrics.summary import Extras, summarise
from slob_opt.problem.files.documents import write_pieces
from slob_opt.problem.workload import NS_PER_S, Workload

REQUEST_COLUMNS = (
    "policy", "request", "status", "arrival_s", "prompt_tokens", "output_tokens", "max_new_tokens", "priority",
    "delivered_tokens", "queueing_s", "ttft_s", "tpot_s", "e2e_s", "longest_stall_s", "satisfaction", "qoe",
    "alone_satisfaction",
)  # fmt: skip
"""Header of requests.csv."""

DECILES = tuple(range(0, 101, 5))
"""Percentiles that draw the distribution of a time."""


def slo_of(workload: Workload, spec: SatisfactionSpec) -> Slo:
    """Return the limits of goodput: each request's own targets, else tau and 1/v of the metric."""
    has_own = workload.ttft_s is not None or workload.tpot_s is not None
    return Slo(spec.ttft_s, 1 / spec.tokens_per_s, has_own_targets=has_own)


def run_summary(run: ServingRun, alone: Alone, spec: SatisfactionSpec, *, has_qoe: bool = True) -> dict[str, float]:
    """Return all figures of a run, see :mod:`slob_opt.metrics.summary`, and how much it took to simulate.

    Beside those: ``num_requests_per_cpu_s``; ``num_preempted``, how often requests lost their KV;
    ``p50_wait_s`` and ``p99_wait_s``, time to the first token of requests
    that were taken, with the end of the observation where none came; ``queue_drift_s``, by how much requests of the
    last quarter queued longer than those of the second, which tells a queue that grows from one that doesn't.
    """
    workload = run.columns.workload
    extras = Extras(
        has_qoe=has_qoe,
        slo=slo_of(workload, spec),
        idle_s=run.columns.idle_s,
        spec=spec,
        alone=alone.satisfaction,
        pipelines=run.pipelines,
    )
    found = summarise(run.columns, run.itl, run.end_ns / NS_PER_S, extras)
    waited = run.waited_s
    return found | {
        "p50_wait_s": float(np.percentile(waited, 50)),
        "p99_wait_s": float(np.percentile(waited, 99)),
        "queue_drift_s": queue_drift_s(run),
        "num_preempted": float(run.result.num_preempted),
        "num_requests_per_cpu_s": workload.num_requests / run.cpu_s if run.cpu_s > 0 else 0.0,
    }


def queue_drift_s(run: ServingRun) -> float:
    """Return the mean queueing time of the last quarter of arrivals less that of the second quarter, seconds."""
    size = run.columns.status.size
    until_end_s = (run.end_ns - run.columns.workload.arrival_ns) / NS_PER_S
    queued = np.where(np.isfinite(run.columns.queueing_s), run.columns.queueing_s, until_end_s)
    if size < 8:
        return 0.0
    return float(queued[3 * size // 4 :].mean() - queued[size // 4 : size // 2].mean())


def point_row(run: ServingRun, summary: dict[str, float]) -> dict[str, object]:
    """Return the figures of a run as a study's row has them; the caller adds what the point is."""
    finished = run.columns.status == Status.FINISHED
    tpot = run.columns.tpot_s[finished & np.isfinite(run.columns.tpot_s)]
    row: dict[str, object] = {
        "mean_satisfaction": summary["mean_satisfaction"],
        "p10_satisfaction": summary["p10_satisfaction"],
        "p1_satisfaction": summary["p1_satisfaction"],
        "relative_satisfaction": summary["mean_relative_satisfaction"],
        "ttft_p50_s": summary["p50_wait_s"],
        "ttft_p99_s": summary["p99_wait_s"],
        "tpot_p50_s": summary["median_tpot_ms"] / 1e3,
        "tpot_p99_s": summary["p99_tpot_ms"] / 1e3,
        "e2e_p99_s": summary["p99_e2el_ms"] / 1e3,
        "longest_stall_p99_s": summary["p99_longest_stall_s"],
        "num_requests": int(summary["num_requests"]),
        "num_unfinished": int(summary["num_unfinished"]),
        "num_rejected": int(summary["num_rejected"]),
        "goodput": summary["request_goodput"],
        "output_tokens_per_s": summary["output_throughput"],
        "bubble_share": summary["bubble_share"],
        "utilisation": summary["utilisation"],
        "padding_waste": summary["padding_waste"],
        "queue_drift_s": summary["queue_drift_s"],
        "cpu_s": run.cpu_s,
        "ttft_deciles_s": quantiles(run.waited_s),
        "tpot_deciles_s": quantiles(tpot),
    }
    return row


def quantiles(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[float] | None:
    """Return the percentiles 0, 5, ... 100, with five digits; ``None`` of nothing."""
    if not values.size:
        return None
    return [float(f"{value:.5g}") for value in np.percentile(values, DECILES)]


def requests_csv(runs: Sequence[ServingRun], alone: Alone) -> Iterator[str]:
    """Yield a table of all requests under each policy, line by line; empty fields where there is no such time."""
    yield ",".join(REQUEST_COLUMNS) + "\n"
    for run in runs:
        yield from _request_lines(run, alone)


def _request_lines(run: ServingRun, alone: Alone) -> Iterator[str]:
    c, w = run.columns, run.columns.workload
    for index in range(w.num_requests):
        values: tuple[object, ...] = (
            run.choice.label, index, Status(int(c.status[index])).name.lower(), w.arrival_ns[index] / NS_PER_S,
            w.prompt_tokens[index], w.output_tokens[index], w.max_new_tokens[index], w.priority[index],
            c.delivered[index], c.queueing_s[index], c.ttft_s[index], c.tpot_s[index], c.e2e_s[index],
            c.longest_stall_s[index], c.satisfaction[index],
            math.nan if c.qoe is None else c.qoe[index], alone.satisfaction[index],
        )  # fmt: skip
        yield ",".join(_field(value) for value in values) + "\n"


def _field(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(float(value))
    text = str(value)
    return f'"{text}"' if "," in text else text


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file line by line, whole or not at all."""
    write_pieces(path, lines)


def params_text(params: object) -> str:
    """Return parameters as JSON text with sorted keys."""
    return json.dumps(params, sort_keys=True)
