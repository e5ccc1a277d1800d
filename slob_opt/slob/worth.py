"""What it is worth to compute a prompt now, and what a batch takes from the streams that wait for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.problem.workload import NS_PER_S
from slob_opt.scheduling.policy import LaneView
from slob_opt.slob.urgency import Reading, stream_loss, waiting_loss

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

STEPS = np.geomspace(1 / 64, 4.0, 24)
"""Seconds of prompt work that are tried as a batch's."""

LEAST_TO_GO = 8.0
"""Tokens that a request is taken to have to come when it has outlived what was expected. Chosen."""

LEAST_GAIN = 0.1
"""Share of a reader's pace by which a stream is taken to catch up, however slow the engine is. Chosen."""


@dataclass(frozen=True, slots=True)
class Worth:
    """Values of requests of a lane at one moment.

    Attributes
    ----------
    view
        Of the lane.
    reading
        How satisfaction is measured.
    expected_output
        Output tokens a request is taken to have where nothing is predicted; its `max_new_tokens` caps it.
    decode_s
        Time of a batch of the lane's streams alone, seconds.
    uses_priority
        Whether clients' priorities weigh.
    """

    view: LaneView
    reading: Reading
    expected_output: int
    decode_s: float
    uses_priority: bool

    def to_go(self, slots: IntArray) -> FloatArray:
        """Return (N,) output tokens that requests are expected to have still to come."""
        columns = self.view.columns
        predicted = columns.predicted[slots]
        length = np.where(np.isnan(predicted), float(self.expected_output), predicted)
        length = np.minimum(length, columns.max_new[slots])
        return np.asarray(np.maximum(length - columns.generated[slots], LEAST_TO_GO))

    def due_s(self, slots: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return (N,) seconds from now until each request's next token is due, and (N,) its reader's 1 / v."""
        columns, reading = self.view.columns, self.reading
        ttft, tpot = columns.ttft_s[slots], columns.tpot_s[slots]
        ttft = np.where(np.isnan(ttft), reading.ttft_s, ttft)
        tpot = np.where(np.isnan(tpot), reading.tpot_s, tpot)
        wait = (columns.arrival_ns[slots] - self.view.now_ns) / NS_PER_S
        return wait + ttft + columns.generated[slots] * tpot, tpot

    def weight(self, slots: IntArray, length: FloatArray) -> FloatArray:
        """Return (N,) what a token weight is worth: the priority over the answer's total weight."""
        priority = self.view.columns.priority[slots] if self.uses_priority else 1.0
        return np.asarray(priority / self.reading.total_weight(length))

    def of_delay(self, slots: IntArray, soon_s: FloatArray | float, later_s: FloatArray | float) -> FloatArray:
        """Return (N,) satisfaction, times priority, lost when next tokens come `later_s` from now, not `soon_s`."""
        reading, generated = self.reading, self.view.columns.generated[slots]
        due, tpot = self.due_s(slots)
        gain = np.maximum(tpot - self.decode_s, LEAST_GAIN * tpot)
        to_go = self.to_go(slots)
        length = generated + to_go
        total = reading.total_weight(length)
        each = (total - reading.first_weight) / length
        next_weight = np.where(generated == 0, reading.first_weight, each)
        soon, later = (
            waiting_loss(x - due, reading, gain, to_go, each, next_weight) for x in (soon_s, later_s)
        )  # fmt: skip
        priority = self.view.columns.priority[slots] if self.uses_priority else 1.0
        return np.asarray(priority / total * (later - soon))

    def slack_s(self, streams: IntArray) -> float:
        """Return for how long each stream bears work beside its next token without being late, seconds."""
        return float(self.due_s(streams)[0].min()) - self.decode_s

    def bearable_s(self, streams: IntArray, work_s: FloatArray, worth_per_s: FloatArray) -> float:
        """Return how much prompt work the streams can bear in the next batch, seconds.

        Until they would lose more by the work than the prompts gain by not waiting for another batch of the streams.

        Parameters
        ----------
        streams
            Slots that decode.
        work_s, worth_per_s
            (P,) work of each prompt, the best first, and satisfaction it loses per second of delay.
        """
        due, tpot = self.due_s(streams)
        late = self.decode_s - due
        gain = np.maximum(tpot - self.decode_s, LEAST_GAIN * tpot)
        to_go, scale = self.to_go(streams), self.reading.scale_s
        length = self.view.columns.generated[streams] + to_go
        weight = self.weight(streams, length) * self.reading.weight_floor
        before = stream_loss(late, scale, gain, to_go)
        after = stream_loss(late + STEPS[:, None], scale, gain, to_go)
        cost = ((after - before) * weight).sum(axis=1)
        ends = np.cumsum(work_s)
        share = np.clip((STEPS[:, None] - (ends - work_s)) / work_s, 0.0, 1.0)
        benefit = self.decode_s * (share * worth_per_s).sum(axis=1)
        allowed = np.flatnonzero(cost <= benefit + 1e-12)
        return float(STEPS[allowed[-1]]) if allowed.size else 0.0
