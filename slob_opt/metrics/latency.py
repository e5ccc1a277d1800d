"""Latency figures with the names and definitions of ``vllm bench serve``.

References
----------
vLLM 0.10, ``vllm/benchmarks/serve.py``, ``calculate_metrics``: TTFT from sending to the first token; TPOT of a request
``(latency - ttft) / (output_len - 1)`` for more than one token; ITL the times between tokens of all requests; E2EL from
sending to the last token; milliseconds. Only completed requests count. Deviations: ITL quantiles come from a histogram
(half a per cent), and throughput is over the whole observation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.metrics.histogram import LogHistogram
from slob_opt.metrics.request_columns import RequestColumns, Status

PERCENTILES = (50, 90, 95, 99)


def latency_figures(columns: RequestColumns, itl: LogHistogram, duration_s: float) -> dict[str, float]:
    """Return the figures of completed requests: milliseconds, requests/s and tokens/s.

    Parameters
    ----------
    columns, itl
        As :class:`MetricsAccumulator` gives them.
    duration_s
        Length of the observation, seconds.
    """
    done = columns.status == Status.FINISHED
    prompts = int(columns.workload.prompt_tokens[done].sum())
    outputs = int(columns.delivered[done].sum())
    found: dict[str, float] = {
        "completed": float(np.count_nonzero(done)),
        "failed": float(np.count_nonzero(columns.counts & ~done)),
        "total_input_tokens": float(prompts),
        "total_output_tokens": float(outputs),
        "duration": duration_s,
        "request_throughput": float(np.count_nonzero(done)) / duration_s if duration_s > 0 else 0.0,
        "output_throughput": outputs / duration_s if duration_s > 0 else 0.0,
        "total_token_throughput": (prompts + outputs) / duration_s if duration_s > 0 else 0.0,
    }
    for name, values in (
        ("ttft", columns.ttft_s), ("tpot", columns.tpot_s), ("e2el", columns.e2e_s), ("queueing", columns.queueing_s),
    ):  # fmt: skip
        found |= _spread(name, values[done & np.isfinite(values)] * 1e3)
    found |= {"mean_itl_ms": itl.mean * 1e3, "median_itl_ms": itl.quantile(0.5) * 1e3, "std_itl_ms": itl.std * 1e3}
    found |= {f"p{p}_itl_ms": itl.quantile(p / 100) * 1e3 for p in PERCENTILES}
    return found


def _spread(name: str, values_ms: NDArray[np.float64]) -> dict[str, float]:
    """Mean, median, standard deviation and percentiles; zeros of nothing, as vLLM has them."""
    if not values_ms.size:
        values_ms = np.zeros(1)
    found = {
        f"mean_{name}_ms": float(values_ms.mean()),
        f"median_{name}_ms": float(np.median(values_ms)),
        f"std_{name}_ms": float(values_ms.std()),
    }
    return found | {f"p{p}_{name}_ms": float(np.percentile(values_ms, p)) for p in PERCENTILES}
