"""Satisfaction of all requests of a record in one pass, so that other (w, phi, sigma) cost no new simulation.

The same figures as :class:`SatisfactionMeter` gives request by request, up to the rounding of sums.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.metrics.answers import first_due_ns, step_ns
from slob_opt.metrics.outcomes import Outcomes
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.satisfaction import SatisfactionSpec
from slob_opt.problem.workload import NS_PER_S

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def _lateness_ns(outcomes: Outcomes, spec: SatisfactionSpec) -> tuple[IntArray, FloatArray]:
    """Places of tokens in their answers from 0, (T,), and how late each came, (T,) nanoseconds, early below zero."""
    owner = np.repeat(np.arange(outcomes.status.size), outcomes.num_tokens)
    place = np.arange(owner.size) - outcomes.token_start[owner]
    due = first_due_ns(outcomes.workload, spec)[owner] + place * step_ns(outcomes.workload, spec)[owner]
    return place, outcomes.token_ns - due


def satisfaction_column(outcomes: Outcomes, spec: SatisfactionSpec) -> FloatArray:
    """Return (N,) S of each request, from 0 to 1; rejected and failed ones have 0.

    Parameters
    ----------
    outcomes
        A record.
    spec
        Weights, decay and targets; requests' own targets go before its tau and v.
    """
    place, late_ns = _lateness_ns(outcomes, spec)
    weights = spec.weights(int(outcomes.workload.output_tokens.max()))
    total = np.cumsum(weights)[outcomes.workload.output_tokens - 1]
    worth = weights[place] * spec.phi(late_ns / (spec.scale_s * NS_PER_S))
    found = np.zeros(outcomes.status.size)
    some = np.flatnonzero(outcomes.num_tokens > 0)
    if some.size:
        found[some] = np.add.reduceat(worth, outcomes.token_start[some]) / total[some]
    found[(outcomes.status == Status.FAILED) | (outcomes.status == Status.REJECTED)] = 0.0
    return found


def idle_column(outcomes: Outcomes, spec: SatisfactionSpec) -> FloatArray:
    """Return (N,) seconds that each reader sat without anything to read, tau at the start not counted.

    A reader at speed v who waits whenever the next token isn't there has waited ``max_k (t_k - d_k)`` by the last
    token, never less than 0. A request that was cut off still waits for its next token at the end of the observation;
    one that was rejected, failed or aborted waits no longer than for what came.
    """
    _, late_ns = _lateness_ns(outcomes, spec)
    found = np.zeros(outcomes.status.size)
    some = np.flatnonzero(outcomes.num_tokens > 0)
    if some.size:
        found[some] = np.maximum.reduceat(late_ns, outcomes.token_start[some])
    next_due = first_due_ns(outcomes.workload, spec) + outcomes.num_tokens * step_ns(outcomes.workload, spec)
    is_open = outcomes.status == Status.UNFINISHED
    found[is_open] = np.maximum(found[is_open], (outcomes.end_ns - next_due)[is_open])
    return np.asarray(np.maximum(found, 0.0) / NS_PER_S)
