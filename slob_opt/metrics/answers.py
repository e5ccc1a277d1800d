"""Figures of many answers at once, from the times of their tokens laid one answer after the other.

Each step runs over all tokens of a batch of answers, so a request costs what its tokens cost and hardly a call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slob_opt.metrics.satisfaction import SatisfactionMeter, SatisfactionSpec
from slob_opt.problem.workload import NS_PER_S, Workload

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def first_due_ns(workload: Workload, spec: SatisfactionSpec) -> FloatArray:
    """Return (N,) nanoseconds, when each first token is due: tau after arrival, or the request's own target."""
    patience = spec.ttft_s if workload.ttft_s is None else workload.ttft_s
    return np.asarray(workload.arrival_ns + np.asarray(patience) * NS_PER_S)


def step_ns(workload: Workload, spec: SatisfactionSpec) -> FloatArray:
    """Return (N,) nanoseconds between due times of a request's tokens: 1 / v, or the request's own target."""
    step = 1 / spec.tokens_per_s if workload.tpot_s is None else workload.tpot_s
    return np.broadcast_to(np.asarray(step) * NS_PER_S, workload.arrival_ns.shape)


class Answers(NamedTuple):
    """R answers, each of at least one token; times in nanoseconds.

    Attributes
    ----------
    token_ns
        (T,) int64, when tokens were delivered, answer after answer.
    sizes
        (R,) int64, tokens of each.
    lengths
        (R,) int64, true lengths.
    arrival_ns
        (R,) int64.
    due_ns
        (R,) float64, when the first token is due.
    step_ns
        (R,) float64, between due times of tokens.
    end_ns
        (R,) int64, up to when each is observed.
    is_open
        (R,) bool, whether it was cut off and its reader still waits at the end.
    """

    token_ns: IntArray
    sizes: IntArray
    lengths: IntArray
    arrival_ns: IntArray
    due_ns: FloatArray
    step_ns: FloatArray
    end_ns: IntArray
    is_open: BoolArray

    @property
    def starts(self) -> IntArray:
        """(R,) where the tokens of each answer begin."""
        return np.asarray(np.cumsum(self.sizes) - self.sizes)


def gaps_ns(answers: Answers) -> tuple[IntArray, BoolArray]:
    """Return (T,) time since the token before, 0 for first ones, and (T,) whether there is one before."""
    gaps = np.zeros(answers.token_ns.size, np.int64)
    np.subtract(answers.token_ns[1:], answers.token_ns[:-1], out=gaps[1:])
    is_gap = np.ones(gaps.size, dtype=bool)
    starts = answers.starts
    gaps[starts], is_gap[starts] = 0, False
    return gaps, is_gap


def times_s(answers: Answers, gaps: IntArray) -> dict[str, FloatArray]:
    """Return (R,) times to first and last token, per token and of the longest stall, seconds; NaN where there is none.

    Parameters
    ----------
    answers
        R answers.
    gaps
        As :func:`gaps_ns` gives them.
    """
    starts, several = answers.starts, answers.sizes > 1
    first, last = answers.token_ns[starts], answers.token_ns[starts + answers.sizes - 1]
    stall = np.maximum(np.maximum.reduceat(gaps, starts), answers.end_ns - last)
    return {
        "ttft_s": (first - answers.arrival_ns) / NS_PER_S,
        "e2e_s": (last - answers.arrival_ns) / NS_PER_S,
        "tpot_s": np.where(several, (last - first) / NS_PER_S / np.maximum(answers.sizes - 1, 1), np.nan),
        "longest_stall_s": np.where(several | (stall > 0), stall / NS_PER_S, np.nan),
    }


def worth(answers: Answers, meter: SatisfactionMeter, *, has_qoe: bool) -> dict[str, FloatArray]:
    """Return (R,) seconds of idle time, satisfaction and, where wanted, QoE; all come from how late tokens are.

    Parameters
    ----------
    answers
        R answers.
    meter
        Of satisfaction, with its weights.
    has_qoe
        Whether ``qoe`` is among them.
    """
    starts, sizes, step = answers.starts, answers.sizes, answers.step_ns
    place = np.arange(answers.token_ns.size) - np.repeat(starts, sizes)
    offset = np.asarray(place * np.repeat(step, sizes), np.float64)
    lead = np.asarray(
        answers.token_ns - offset, np.float64
    )  # when the first token had to be due for this one to be in time
    latest = np.maximum.reduceat(lead, starts) - answers.due_ns
    waits = np.where(answers.is_open, answers.end_ns - answers.due_ns - sizes * step, 0.0)
    is_timely = latest <= 0
    weights, sums = meter.tables(int(answers.lengths.max()))
    satisfaction = sums[sizes] / sums[answers.lengths]
    if not is_timely.all():
        late = np.repeat(answers.due_ns, sizes)
        np.subtract(lead, late, out=late)
        late *= 1 / (meter.spec.scale_s * NS_PER_S)
        values = meter.spec.phi(late)
        values *= weights[place]
        satisfaction = np.where(
            is_timely, satisfaction, np.add.reduceat(values, starts) / sums[answers.lengths]
        )  # fmt: skip
    found = {"idle_s": np.maximum(np.maximum(latest, waits), 0.0) / NS_PER_S, "satisfaction": satisfaction}
    if has_qoe:
        is_perfect = is_timely & (sizes == answers.lengths)
        found["qoe"] = np.ones(sizes.size) if is_perfect.all() else _qoe(answers, lead, offset, is_perfect)
    return found


def _qoe(answers: Answers, lead: FloatArray, offset: FloatArray, is_perfect: BoolArray) -> FloatArray:
    """Return (R,) QoE as :func:`slob_opt.metrics.qoe.qoe_of_reading` has it, 1 for the perfect; overwrites `lead`."""
    starts, sizes = answers.starts, answers.sizes
    others = np.flatnonzero(~is_perfect)
    for first, size in zip(starts[others].tolist(), sizes[others].tolist(), strict=True):
        own = lead[first : first + size]
        np.maximum.accumulate(own, out=own)
    lead += offset  # now when each token is digested
    until = np.repeat(answers.end_ns.astype(np.float64), sizes)
    until -= lead
    # A token counts from when it's digested over one step: with a of its step past, a (until - a / 2) / step.
    step = np.repeat(answers.step_ns, sizes)
    part = np.minimum(until, step)
    np.maximum(part, 0.0, out=part)
    until -= np.multiply(part, 0.5, out=step)
    until *= part
    area = np.add.reduceat(until, starts) / answers.step_ns
    time, full = answers.end_ns - answers.due_ns, answers.lengths * answers.step_ns
    ideal = np.where(time <= full, time**2 / (2 * answers.step_ns), answers.lengths * (time - 0.5 * full))
    has_ideal = (time > 0) & (ideal > 0)
    share = np.minimum(1.0, area / np.where(has_ideal, ideal, 1.0))
    return np.where(is_perfect | ~has_ideal, 1.0, share)
