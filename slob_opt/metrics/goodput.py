"""Goodput: how much was served well enough, counted sharply by limits or smoothly by what readers got and waited.

References
----------
vLLM, ``vllm/benchmarks/serve.py``, ``calculate_metrics``: a completed request is good when each limit that is given is
met, limits included; a TPOT of one token counts as 0.
Wang et al. 2024, Revisiting SLO and goodput metrics in LLM serving, arXiv 2410.14257 (2025 as Revisiting service level
objectives and system level metrics): token i is due at ``d_i = V i``, a reader's idle latency is
``l = max_i (t_i - d_i)``, the benefit of a request is its tokens minus ``alpha f(l)``, and smooth goodput the sum of
benefits over the time. We had its abstract and others' retelling of these formulas, not its text. Deviations: the
first token is due after tau, later ones 1 / v apart; f(l) = l; alpha is v by default, so that an idle second costs what
is read in one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.metrics.request_columns import RequestColumns, Status
from slob_opt.metrics.satisfaction import SatisfactionSpec

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits that a good request meets.

    Attributes
    ----------
    ttft_s, tpot_s, e2e_s
        Largest time to the first token, time per token after it, and time to the last; seconds, ``None`` is no limit.
    has_own_targets
        Whether targets that the workload gives its requests go before `ttft_s` and `tpot_s`.

    Raises
    ------
    InputError
        When there is no limit, or one that isn't above zero.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    has_own_targets: bool = False

    def __post_init__(self) -> None:
        limits = {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s, "e2e_s": self.e2e_s}
        for name, limit in limits.items():
            if limit is not None and not (np.isfinite(limit) and limit > 0):
                raise InputError(f"{name} is {limit}, expected a finite time above zero")
        if all(limit is None for limit in limits.values()) and not self.has_own_targets:
            raise InputError("no limit is given, expected at least one of ttft_s, tpot_s and e2e_s")


def meets_slo(columns: RequestColumns, slo: Slo) -> BoolArray:
    """Return (N,) whether each request finished within all limits."""
    own_ttft, own_tpot = (columns.workload.ttft_s, columns.workload.tpot_s) if slo.has_own_targets else (None, None)
    is_good = np.asarray(columns.status == Status.FINISHED)
    for times_s, own, limit in (
        (columns.ttft_s, own_ttft, slo.ttft_s),
        (columns.tpot_s, own_tpot, slo.tpot_s),
        (columns.e2e_s, None, slo.e2e_s),
    ):
        most = limit if own is None else own
        if most is not None:
            is_good = is_good & (np.nan_to_num(times_s, nan=0.0) <= most)
    return is_good


def goodput_figures(columns: RequestColumns, slo: Slo, duration_s: float) -> dict[str, float]:
    """Return good requests per second and as a share.

    Returns
    -------
    dict
        ``request_goodput``, requests/s; ``slo_attainment``, share of the requests that count, rejected ones included,
        so that turning requests away doesn't raise it.
    """
    is_good = meets_slo(columns, slo)
    num, counted = int(np.count_nonzero(is_good)), int(np.count_nonzero(columns.counts))
    return {
        "request_goodput": num / duration_s if duration_s > 0 else 0.0,
        "slo_attainment": num / counted if counted else 0.0,
    }


def smooth_goodput(
    columns: RequestColumns,
    idle_s: FloatArray,
    duration_s: float,
    spec: SatisfactionSpec,
    alpha_tokens_per_s: float | None = None,
) -> float:
    """Return tokens delivered minus what idle time costs, tokens/s; below zero when readers mostly waited.

    Parameters
    ----------
    columns
        Figures of N requests.
    idle_s
        (N,) seconds that each reader sat without anything to read, see :func:`idle_column`.
    duration_s
        Length of the observation, seconds.
    spec
        Its v is the default price.
    alpha_tokens_per_s
        Tokens that an idle second costs; ``None`` is v.
    """
    if duration_s <= 0:
        return 0.0
    alpha = spec.tokens_per_s if alpha_tokens_per_s is None else alpha_tokens_per_s
    counts = columns.counts
    return float(columns.delivered[counts].sum() - alpha * idle_s[counts].sum()) / duration_s
