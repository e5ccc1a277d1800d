"""Skip-join multi-level feedback queue: who has had little service goes first, and long prompts start further down.

References
----------
Wu et al. 2023, Fast distributed inference serving for large language models (FastServe), arXiv 2305.05920, section 4.2:
queues whose quanta grow by a factor, jobs that enter at the first queue whose quantum holds their first iteration, fall
a queue when they have used its quantum, and rise to the first when they have waited too long.

Deviations: levels aren't remembered but follow from what a request has: its prompt gives the queue it joined, prompt
and generated tokens its service, by the clock's times of a request alone; so all members of a batch are charged alike
and recomputing is free. A request that waited too long rises for one iteration, which is the first queue's quantum.
KV is not swapped to the host: paused requests keep theirs, and where blocks are short those of lower queues lose it
and compute it again. New requests don't take it from those in lower queues unless `takes_kv` says so: where swapping is
cheap that is the paper's way, where KV has to be computed again it drowns the server in recomputing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.workload import NS_PER_S
from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.policies.fcfs import MANY
from slob_opt.scheduling.policies.ranked import Ranking, by_arrival, is_plain_decode
from slob_opt.scheduling.policy import KvUse, LaneView

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

STARVATION_S = 10.0
"""Wait after which a request rises to the first queue, seconds. Chosen; the paper leaves it to the operator."""


@dataclass(frozen=True, slots=True)
class MlfqPolicy:
    """Skip-join multi-level feedback queue.

    Attributes
    ----------
    max_batch
        Most requests of a batch of a lane; ``None`` is as many as may hold KV in it.
    quantum_s
        Service in the first queue, seconds; ``None`` is one decode iteration of a request alone.
    quantum_growth
        Quantum of a queue over that of the one before; the paper has 2.
    num_levels
        Queues. Chosen: the last one's quantum is 2,048 iterations.
    starvation_s
        Wait after which a request rises to the first queue.
    takes_kv
        Whether a request that waits may take rows and blocks of those in lower queues.

    Raises
    ------
    InputError
        When a parameter is out of range.
    """

    max_batch: int | None = None
    quantum_s: float | None = None
    quantum_growth: float = 2.0
    num_levels: int = 12
    starvation_s: float = STARVATION_S
    takes_kv: bool = False
    name: str = "mlfq"
    kv_use: KvUse = KvUse.PAGED
    holds_finished: bool = False
    is_streamed: bool = True

    def __post_init__(self) -> None:
        for name, least in (("max_batch", 1), ("num_levels", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}, expected at least {least}")
        for name, floor in (("quantum_s", 0.0), ("starvation_s", 0.0), ("quantum_growth", 1.0)):
            value = getattr(self, name)
            if value is not None and not floor < value < math.inf:
                raise InputError(f"{name} is {value}, expected a finite number above {floor:g}")

    def decide(self, view: LaneView) -> BatchPlan | None:
        """Return the first requests of the first queues, prompts whole."""
        most = min(self.max_batch or view.limits.lane_rows, view.limits.lane_rows)
        if view.rows.size <= most and is_plain_decode(view):
            return BatchPlan.decode(view.rows, max_repeats=MANY)
        ranking = Ranking(view, 1 << 30)
        slots = ranking.candidates
        if not slots.size:
            return None
        level, steps = self.levels(view, slots)
        levels = level.tolist()
        plan = ranking.batch(
            by_arrival(view, slots, level),
            max_batch=most,
            prompt_tokens=1 << 60,
            is_chunked=False,
            may_drop=lambda new, row: self.takes_kv and levels[new] < levels[row],
        )
        if plan is None or plan.preempt.size or not plan.slots.size:
            return plan
        if max(ranking.taken) >= ranking.num_rows:
            return plan
        chosen = np.zeros(slots.size, dtype=bool)
        chosen[ranking.taken] = True
        return plan._replace(max_repeats=self._repeats(view, slots, chosen, steps))

    def levels(self, view: LaneView, slots: IntArray) -> tuple[IntArray, FloatArray]:
        """Return (N,) the queue of each request from 0, and (N,) iterations until it falls, inf in the last queue."""
        columns, growth = view.columns, self.quantum_growth
        iteration = view.clock.pace_s(1, 0, view.limits.num_lanes)
        quantum = self.quantum_s or iteration
        first = columns.prompt[slots] * view.clock.prompt_token_s
        joined = np.ceil(np.log(np.maximum(first / quantum, 1.0)) / math.log(growth) - 1e-9)
        own = quantum * growth**joined  # quantum of the queue it joined
        generated = columns.generated[slots]
        service = np.where(generated > 0, first + (generated - 1) * iteration, 0.0)
        falls = np.floor(np.log1p(service * (growth - 1) / own) / math.log(growth) + 1e-9)
        level = joined + falls
        until = own * (growth ** (falls + 1) - 1) / (growth - 1)  # service at which it falls again
        steps = np.maximum(np.ceil((until - service) / iteration - 1e-9), 1.0)
        steps = np.where(level >= self.num_levels - 1, np.inf, steps)
        level = np.minimum(level, self.num_levels - 1)
        is_starved = self._waited_s(view, slots) >= self.starvation_s
        steps = np.where(is_starved, 1.0, steps)
        return np.where(is_starved, 0, level).astype(np.int64), steps

    @staticmethod
    def _waited_s(view: LaneView, slots: IntArray) -> FloatArray:
        """Return (N,) seconds since each request's last token, or its arrival."""
        columns = view.columns
        since = np.where(columns.generated[slots] > 0, columns.last_token_ns[slots], columns.arrival_ns[slots])
        return np.asarray((view.now_ns - since) / NS_PER_S)

    def _repeats(self, view: LaneView, slots: IntArray, chosen: NDArray[np.bool_], steps: FloatArray) -> int:
        """Return iterations until a member falls a queue, or one that is left out has waited too long."""
        if chosen.all():
            return MANY
        most = float(steps[chosen].min())
        batch = slots[chosen]
        pace = view.clock.pace_s(int(batch.size), int(view.columns.cached[batch].sum()), view.limits.num_lanes)
        waited = float(self._waited_s(view, slots[~chosen]).max())
        if waited < self.starvation_s:
            most = min(most, (self.starvation_s - waited) / pace)
        return max(1, int(min(most, float(MANY))))
