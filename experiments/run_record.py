"""What a run leaves behind, as plain data: any process can make one, one process stores it.

Metric names are a closed list. Rows per device or per request go to one CSV table, long parameters to a text, both as
artifacts: stores slow down with thousands of metric names or points and cut or refuse long parameters.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.provenance import text_digest
from slob_opt.errors import InputError

MAX_METRICS = 200
"""Most metric values of one run, series included. Chosen: a store's pages stay quick well above it."""
MAX_PARAM_CHARS = 500
"""Longest parameter kept in the store itself; stores cut or refuse at 500 to 6000 characters, by version."""

RUN_METRICS = frozenset(
    {
        "objective",  # natural scale: seconds (interval) or output tokens/s (throughput)
        "bound",
        "gap_pct",
        "best_gap_pct",  # against the best bound of all methods on the instance
        "solve_s",
        "headroom_bytes",
        "interval_s",
        "num_pipelines",
        "num_devices_used",
        "num_devices_left_out",
        "certificate_valid",
        "bound_verified",
        "proven_optimal",
        "history.incumbent",
        "history.bound",
        "num_instances",
        "num_methods",
        "num_failed",
        "num_disagreements",
        "wall_s",
        "mean_satisfaction",
        "p10_satisfaction",
        "p1_satisfaction",
        "relative_satisfaction",  # mean of S over S alone on the best pipeline
        "ttft_p50_s",
        "ttft_p99_s",
        "tpot_p50_s",
        "tpot_p99_s",
        "e2e_p99_s",
        "longest_stall_p99_s",
        "num_requests",
        "num_unfinished",
        "num_rejected",
        "goodput",
        "output_tokens_per_s",
        "bubble_share",
        "utilisation",
        "padding_waste",
    }
)
CLAIM_METRICS = frozenset(
    {"gap.instances", "gap.exact_disagreements", "gap.certificate_violations", "gap.property_violations"}
    | {f"gap.slob.{o}.{s}_pct" for o in ("interval", "throughput") for s in ("median", "p95", "max")}
    | {"gap.slob.speedup_median", "gap.slob.monotonicity_worst_pct"}
    | {"scale.single24.proof_s", "scale.hetero42.gap_pct", "scale.hetero42.wall_s"}
    | {"scale.medium.median_gap_pct", "scale.medium.max_gap_pct"}
    | {f"scale.slob{n}.{s}" for n in (256, 1024) for s in ("wall_s", "gap_pct")}
    | {f"paper.max_ratio_{name}" for name in ("rtc", "orca", "orca_paged")}
    | {"paper.capacity_ratio_orca", "paper.worst_vs_orca_pct", "sensitivity.rank_correlation", "adapter.gain_pct"}
    | {"policies.contested_points", "policies.best_or_tied_pct", "policies.worst_gap_pct"}
    | {f"speed.{name}_req_per_cpu_s" for name in ("orca", "slob", "pipeline4")}
    | {"speed.growth_100k_vs_4k", "speed.million_peak_mb"}
)
METRIC_NAMES = RUN_METRICS | CLAIM_METRICS
"""Every metric name there is."""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric over time.

    Attributes
    ----------
    name
        One of :data:`METRIC_NAMES`.
    points
        (elapsed seconds, value), in order of time.
    """

    name: str
    points: tuple[tuple[float, float], ...]

    def thinned(self, max_points: int) -> Series:
        """Return at most `max_points` points, first and last kept."""
        count = len(self.points)
        if count <= max_points:
            return self
        picked = sorted({round(i * (count - 1) / (max_points - 1)) for i in range(max_points)})
        return Series(self.name, tuple(self.points[i] for i in picked))


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows that belong together, one artifact.

    Attributes
    ----------
    path
        Artifact path, ending in ``.csv``.
    columns
        Names.
    rows
        Values, one tuple a row.
    """

    path: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def as_csv(self) -> str:
        """Return the table as CSV text with a header; ``None`` becomes an empty field."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return out.getvalue()


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run: what it was given and what came out.

    Attributes
    ----------
    name
        Shown in the store.
    tags
        Short texts to search by.
    params
        What the run was given. Values above :data:`MAX_PARAM_CHARS` become a hash here and a text artifact.
    metrics
        Summary figures; names from :data:`METRIC_NAMES`, finite values.
    series
        Figures over time; thinned so that the run stays within :data:`MAX_METRICS` points.
    tables
        Rows, as CSV artifacts.
    texts
        (artifact path, content).
    files
        (artifact folder, path of a local file); an empty folder is the root.
    has_failed
        Whether the run ended without a result that can be used.
    """

    name: str
    tags: tuple[tuple[str, str], ...] = ()
    params: tuple[tuple[str, str], ...] = ()
    metrics: tuple[tuple[str, float], ...] = ()
    series: tuple[Series, ...] = ()
    tables: tuple[RowTable, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    has_failed: bool = False

    def __post_init__(self) -> None:
        names = [name for name, _ in self.metrics] + [item.name for item in self.series]
        unknown = sorted(set(names) - METRIC_NAMES)
        if unknown:
            raise InputError(f"metric {unknown[0]!r} is not in the closed list of metric names; put rows into a table")
        if len(set(names)) != len(names):
            raise InputError(f"a metric of run {self.name!r} is given twice")
        for name, value in (*self.metrics, *((s.name, v) for s in self.series for _, v in s.points)):
            if not math.isfinite(value):
                raise InputError(f"metric {name!r} of run {self.name!r} is {value!r}, expected a finite number")
        if len({key for key, _ in self.params}) != len(self.params):
            raise InputError(f"a parameter of run {self.name!r} is given twice")

    def short_params(self) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
        """Return (parameters for the store, texts for the artifacts)."""
        params, texts = [], []
        for key, value in self.params:
            if len(value) <= MAX_PARAM_CHARS:
                params.append((key, value))
                continue
            path = f"params/{key.replace('/', '_')}.txt"
            params.append((key, f"sha256:{text_digest(value)} ({len(value)} characters, {path})"))
            texts.append((path, value))
        return tuple(params), tuple(texts)

    def thin_series(self) -> tuple[Series, ...]:
        """Return the series, thinned so that metrics and series together stay within :data:`MAX_METRICS` points."""
        room = MAX_METRICS - len(self.metrics)
        share = max(2, room // max(1, len(self.series)))
        return tuple(item.thinned(share) for item in self.series if item.points)


def flatten(config: object, prefix: str = "") -> tuple[tuple[str, str], ...]:
    """Return nested dictionaries as flat (dotted key, text) parameters; lists become comma-separated text.

    Examples
    --------
    >>> flatten({"limits": {"time_s": 1.0, "seed": 0}, "methods": ["slob", "ilp"]})
    (('limits.time_s', '1.0'), ('limits.seed', '0'), ('methods', 'slob,ilp'))
    """
    if isinstance(config, dict):
        nested: Iterable[tuple[str, object]] = ((str(key), value) for key, value in config.items())
        return tuple(pair for key, value in nested for pair in flatten(value, f"{prefix}.{key}" if prefix else key))
    if isinstance(config, Sequence) and not isinstance(config, str):
        if any(isinstance(item, dict | list | tuple) for item in config):
            return tuple(pair for i, item in enumerate(config) for pair in flatten(item, f"{prefix}.{i}"))
        return ((prefix, ",".join(str(item) for item in config)),)
    return ((prefix, "none" if config is None else str(config)),)
