"""All figures of a run as one flat dictionary with stable keys, for tables, files and trackers.

Which keys there are depends on what the caller asks for, never on what happened in the run.

==========================================  ===========================================================================
always                                      meaning
==========================================  ===========================================================================
``completed`` ... ``p99_itl_ms``            as ``vllm bench serve`` names them, see :func:`latency_figures`
``num_requests`` and ``num_finished``,      requests in all, and by how they ended; aborted ones count nowhere else
``num_unfinished``, ``num_rejected``,       ``num_unseen`` are those that were never handed over: nothing came of them
``num_failed``, ``num_aborted``,
``num_unseen``
``num_without_tpot``                        finished requests of one token, which have no TPOT
``mean_satisfaction``, ``p10_``, ``p1_``,   S over the requests that count
``weighted_mean_satisfaction``
``mean_longest_stall_s``, ``p99_``,         longest time between two tokens of a request, over requests of two or more
``max_longest_stall_s``
==========================================  ===========================================================================

==========================================  ===========================================================================
with                                        meaning
==========================================  ===========================================================================
`has_qoe`: ``mean_qoe``, ``p10_qoe``        Andes' quality of experience over the requests that count, if computed
`slo`: ``request_goodput``,                 see :func:`goodput_figures`
``slo_attainment``
`idle_s`: ``smooth_goodput``,               tokens/s, see :func:`smooth_goodput`; seconds without anything to read
``mean_idle_s``
`alone`: ``mean_relative_satisfaction``     S over S alone, see :func:`relative_satisfaction`
... ``num_hopeless``
`client`: ``service_difference``,           see :mod:`slob_opt.metrics.fairness`
``jain_index``
`pipelines`: ``padding_waste`` ...          see :func:`load_figures`
`window`: ``window_first_s``,               bounds of arrivals that count, seconds from the start of the workload
``window_end_s``
==========================================  ===========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.metrics.alone import relative_satisfaction
from slob_opt.metrics.fairness import jain_index, service_by_client, service_difference
from slob_opt.metrics.goodput import Slo, goodput_figures, smooth_goodput
from slob_opt.metrics.histogram import LogHistogram
from slob_opt.metrics.latency import latency_figures
from slob_opt.metrics.load import PipelineLoads, load_figures
from slob_opt.metrics.request_columns import RequestColumns, Status
from slob_opt.metrics.satisfaction import SatisfactionSpec, satisfaction_summary
from slob_opt.metrics.window import Window, columns_in
from slob_opt.problem.workload import NS_PER_S

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Extras:
    """What a summary holds beyond latency, satisfaction and stalls; ``None`` leaves it out.

    Attributes
    ----------
    has_qoe
        Whether QoE is told; it isn't where columns have none.
    slo
        Limits of goodput.
    idle_s
        (N,) seconds that each reader sat without anything to read.
    spec
        Of satisfaction, whose v prices idle time; ``None`` takes the defaults.
    alone
        (N,) S of each request alone on the best pipeline.
    client
        (N,) int64, which client sent each, from 0.
    pipelines
        For each pipeline what its stages did, over the whole run.
    window
        Arrivals that count. Columns above are of all requests all the same.
    """

    has_qoe: bool = True
    slo: Slo | None = None
    idle_s: FloatArray | None = None
    spec: SatisfactionSpec | None = None
    alone: FloatArray | None = None
    client: IntArray | None = None
    pipelines: PipelineLoads | None = None
    window: Window | None = None


def summarise(
    columns: RequestColumns, itl: LogHistogram, duration_s: float, extras: Extras | None = None
) -> dict[str, float]:
    """Return all figures of a run by name.

    Parameters
    ----------
    columns
        Figures of N requests.
    itl
        Times between tokens; with a window, of its requests only, see :class:`MetricsAccumulator`.
    duration_s
        Length of the observation, seconds. With a window, rates are over the window's length instead, of the requests
        that arrived in it.
    extras
        What else is wanted; ``None`` is QoE only.

    Raises
    ------
    InputError
        When no request counts, since then there is no satisfaction.
    """
    extras = extras or Extras()
    found: dict[str, float] = {}
    if extras.pipelines is not None:
        found |= load_figures(extras.pipelines, round(duration_s * NS_PER_S))
    idle_s, alone, client, window = extras.idle_s, extras.alone, extras.client, extras.window
    if window is not None:
        index = np.flatnonzero(window.holds(columns.workload))
        idle_s = None if idle_s is None else idle_s[index]
        alone = None if alone is None else alone[index]
        client = None if client is None else client[index]
        columns, duration_s = columns_in(columns, window), window.duration_s
        found |= {"window_first_s": window.first_ns / NS_PER_S, "window_end_s": window.end_ns / NS_PER_S}
    found = latency_figures(columns, itl, duration_s) | _counts(columns) | _worth(columns, extras.has_qoe) | found
    if extras.slo is not None:
        found |= goodput_figures(columns, extras.slo, duration_s)
    if idle_s is not None:
        found["smooth_goodput"] = smooth_goodput(columns, idle_s, duration_s, extras.spec or SatisfactionSpec())
        found["mean_idle_s"] = float(idle_s[columns.counts].mean())
    if alone is not None:
        found |= relative_satisfaction(columns, alone)
    if client is not None:
        service = service_by_client(columns, client)
        found |= {"service_difference": service_difference(service), "jain_index": jain_index(service)}
    return found


def _counts(columns: RequestColumns) -> dict[str, float]:
    """Numbers of requests by how they ended."""
    found = {"num_requests": float(columns.status.size)}
    for status in Status:
        found[f"num_{status.name.lower()}"] = float(np.count_nonzero(columns.status == status))
    is_short = (columns.status == Status.FINISHED) & np.isnan(columns.tpot_s)
    return found | {"num_without_tpot": float(np.count_nonzero(is_short))}


def _worth(columns: RequestColumns, has_qoe: bool) -> dict[str, float]:
    """Satisfaction, stalls and QoE of the requests that count."""
    counts = columns.counts
    found = satisfaction_summary(columns.satisfaction[counts], columns.workload.priority[counts])
    stalls = columns.longest_stall_s[counts]
    stalls = stalls[np.isfinite(stalls)]
    stalls = stalls if stalls.size else np.zeros(1)  # zeros of nothing, as for latency
    found |= {
        "mean_longest_stall_s": float(stalls.mean()),
        "p99_longest_stall_s": float(np.percentile(stalls, 99)),
        "max_longest_stall_s": float(stalls.max()),
    }
    if has_qoe and columns.qoe is not None:
        found |= {
            "mean_qoe": float(columns.qoe[counts].mean()),
            "p10_qoe": float(np.percentile(columns.qoe[counts], 10)),
        }
    return found
