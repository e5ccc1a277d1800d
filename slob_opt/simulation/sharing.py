"""Devices that serve several stages, of one pipeline or of several: one batch at a time, first come, first served.

A batch queues when it comes to the device. A pipeline whose first stage is there queues as well, and decides what to
run when its turn comes, not before. Pipelines without shared devices need none of this: see :mod:`.servers`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from slob_opt.simulation.lanes import PipelineDriver
from slob_opt.simulation.servers import CAME, LEFT, Run

PipelineCards = Sequence[Sequence[Sequence[int]]]
"""For each pipeline and stage the cards that compute it."""


class Server:
    """A card, or cards that are used together, with its queue of (pipeline, lane); lane -1 is a pipeline's turn."""

    __slots__ = ("is_busy", "queue")

    def __init__(self) -> None:
        self.is_busy = False
        self.queue: deque[tuple[SharingDriver, int]] = deque()

    def serve(self, now: int) -> None:
        """Start the next in the queue that has something to run."""
        while self.queue and not self.is_busy:
            driver, lane = self.queue.popleft()
            if lane < 0:
                driver.take_turn(now)
            else:
                driver.begin(lane, now)


class SharingDriver(PipelineDriver):
    """Drives a pipeline stage by stage; the parameters are those of :class:`PipelineDriver`."""

    def __init__(self, *args: Any, servers: Sequence[Server], **more: Any) -> None:
        super().__init__(*args, **more)
        self.servers = tuple(servers)
        self.others: tuple[SharingDriver, ...] = ()
        self._has_turn = False

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing in flight, held or waiting."""
        return self.line.in_flight == 0 and self.scheduler.outstanding(self.index) == 0

    def on_event(self, kind: int, ticket: int, lane: int, now: int) -> bool:
        """Do what an event says; return whether it was a batch that returned."""
        if kind == LEFT:
            self._leave(lane, now)
        elif kind == CAME:
            self._queue_at(self.line.runs[lane].stage, lane, now)
        else:
            return super().on_event(kind, ticket, lane, now)
        return False

    def start(self, now: int) -> None:
        """Launch a lane if the first device is free, and queue for it if another has work."""
        if self.not_before and self.is_loading(now):
            return
        if not self.servers[0].is_busy:
            self.take_turn(now)
        elif not self._has_turn and self._wants_turn():
            self._has_turn = True
            self.servers[0].queue.append((self, -1))

    def _wants_turn(self) -> bool:
        runs = self.line.runs
        return any(not run.is_busy and self.scheduler.has_work(self.index, lane) for lane, run in enumerate(runs))

    def take_turn(self, now: int) -> None:
        """Launch the next lane that has something to run; the first device must be free."""
        self._has_turn = False
        line = self.line
        size = len(line.runs)
        for offset in range(size):
            lane = (line.next_lane + offset) % size
            if not line.runs[lane].is_busy and self._launch(lane, now):
                line.next_lane = (lane + 1) % size
                break
        if self.servers[0].is_busy and self._wants_turn():
            self._has_turn = True
            self.servers[0].queue.append((self, -1))

    def _leap(self, run: Run, lane: int, now: int) -> bool:
        return all(other.is_idle for other in self.others) and super()._leap(run, lane, now)

    def go_on(self) -> None:
        """Do nothing: which batch comes first to a shared device is known only when it comes."""

    def _send(self, run: Run, lane: int, now: int) -> None:
        run.stage = 0
        self.line.tokens += run.computed
        self.line.padding += run.padding
        self.begin(lane, now)

    def begin(self, lane: int, now: int) -> None:
        """Start a lane's batch on the stage it came to; its device must be free."""
        line = self.line
        run = line.runs[lane]
        stage = run.stage
        time = line.stage_ns(run, stage) if self._rng is None else line.noisy_ns(run, stage, self._rng, self._noise)
        self.servers[stage].is_busy = True
        if line.first[stage] is None:
            line.first[stage] = now
        line.stage_free[stage] = now + time
        line.busy[stage] += time
        if run.spans is not None:
            run.spans.append((now, now + time))
        self.timeline.push(now + time, LEFT, self.index, lane)

    @property
    def _noise(self) -> float:
        return self.options.noise

    def _leave(self, lane: int, now: int) -> None:
        """Send a batch on to the next stage, or home, and let the next one onto the device."""
        line = self.line
        run = line.runs[lane]
        stage = run.stage
        busy, latency, back = run.hops
        server = self.servers[stage]
        server.is_busy = False
        if stage + 1 == len(self.servers):
            self._push_done(now + back, lane)
        else:
            line.link_free[stage] = max(now, line.link_free[stage]) + busy[stage]
            run.stage = stage + 1
            self.timeline.push(line.link_free[stage] + latency[stage], CAME, self.index, lane)
        server.serve(now)

    def _queue_at(self, stage: int, lane: int, now: int) -> None:
        server = self.servers[stage]
        if server.is_busy:
            server.queue.append((self, lane))
        else:
            self.begin(lane, now)


def servers_of(cards: PipelineCards) -> list[list[Server] | None]:
    """Return for each pipeline the server of each of its stages; ``None`` where nobody shares a card with another.

    Stages that have a card in common have one server, and so do stages that have one in common with a third.
    """
    stages = [(pipeline, stage) for pipeline, held in enumerate(cards) for stage in range(len(held))]
    parent = list(range(len(stages)))

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    owner: dict[int, int] = {}
    for index, (pipeline, stage) in enumerate(stages):
        for card in cards[pipeline][stage]:
            if card in owner:
                parent[root(index)] = root(owner[card])
            else:
                owner[card] = index
    roots = [root(index) for index in range(len(stages))]
    made = {index: Server() for index in roots}
    found: list[list[Server] | None] = []
    for pipeline in range(len(cards)):
        own = [roots[index] for index, (other, _) in enumerate(stages) if other == pipeline]
        is_shared = any(roots.count(index) > 1 for index in own)
        found.append([made[index] for index in own] if is_shared else None)
    return found


def introduce(drivers: Sequence[PipelineDriver]) -> None:
    """Tell each driver of shared devices which others meet it there."""
    sharing = [driver for driver in drivers if isinstance(driver, SharingDriver)]
    for driver in sharing:
        own = set(driver.servers)
        driver.others = tuple(one for one in sharing if one is not driver and own & set(one.servers))
