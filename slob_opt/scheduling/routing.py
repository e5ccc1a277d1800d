"""Which pipeline a request goes to: those that are open, what fits them, and where requests go when one is lost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slob_opt.errors import PolicyError
from slob_opt.scheduling.batch_plan import NO_SLOTS
from slob_opt.scheduling.columns import RequestColumns
from slob_opt.scheduling.pipe import NO_LIMIT, Pipe
from slob_opt.scheduling.policy import ArrivalView, Dispatcher
from slob_opt.scheduling.records import Arrival


def misfit(arrival: Arrival, pipe: Pipe) -> str:
    """Return why a request can never be served on a pipeline; empty when it can."""
    limits = pipe.limits
    longest = arrival.prompt + arrival.max_new
    if limits.max_tokens is not None and longest > limits.max_tokens:
        return (
            f"prompt of {arrival.prompt} and max_new_tokens of {arrival.max_new} make {longest} tokens, the model"
            f" takes {limits.max_tokens}"
        )
    need = limits.blocks_of(longest)
    if need > limits.kv_blocks:
        return (
            f"{longest} tokens need {need} KV blocks of {limits.block_tokens} tokens, the pipeline has"
            f" {limits.kv_blocks}"
        )
    return ""


class Routing:
    """The open pipelines of a scheduler, and its dispatcher's choice among them.

    Parameters
    ----------
    pipes
        All pipelines, open or not; the scheduler's own list, which may grow.
    dispatcher
        ``None`` takes the first one that is open.
    columns
        Of all requests.

    Attributes
    ----------
    open
        Numbers of the pipelines that take requests, in order. It's empty only after the last one was lost.
    """

    def __init__(self, pipes: Sequence[Pipe], dispatcher: Dispatcher | None, columns: RequestColumns) -> None:
        self._pipes, self._dispatcher, self._columns = pipes, dispatcher, columns
        self.open = list(range(len(pipes)))

    def choose(self, arrival: Arrival, now_ns: int) -> int | None:
        """Return the pipeline of a request among the open ones; ``None`` when the dispatcher wants it on none."""
        taking = self.open
        if self._dispatcher is None or not taking:
            return taking[0] if taking else None
        pipes = [self._pipes[index] for index in taking]
        for pipe in self._pipes:
            pipe.pay()
        view = ArrivalView(
            now_ns, arrival.prompt, arrival.max_new, arrival.priority, self._columns,
            [pipe.limits for pipe in pipes], [pipe.clock for pipe in pipes],
            np.array([pipe.outstanding for pipe in pipes], np.int64),
            [np.array(sorted(pipe.members), np.int64) for pipe in pipes], arrival.ttft_s, arrival.tpot_s,
        )  # fmt: skip
        chosen = self._dispatcher.choose(view)
        if chosen is None:
            return None
        if not 0 <= chosen < len(taking):
            raise PolicyError(f"the dispatcher chose pipeline {chosen} of {len(taking)}")
        return taking[chosen]

    def set_open(self, pipeline: int, *, is_open: bool) -> None:
        """Let a pipeline take new requests or not; raises PolicyError when none stays open."""
        if is_open:
            self.open = sorted({*self.open, pipeline})
            return
        left = [index for index in self.open if index != pipeline]
        if not left:
            raise PolicyError(f"pipeline {pipeline} closes, and no other is open")
        self.open = left

    def lose(self, pipeline: int) -> None:
        """Take back everything that a pipeline had begun, whose stages are gone: its requests wait there, without KV.

        What its batches in flight computed is lost; tokens that were delivered stay so.
        """
        self.open = [index for index in self.open if index != pipeline]
        pipe = self._pipes[pipeline]
        pipe.pay()
        for lane in pipe.lanes:
            lane.in_flight, lane.launch, lane.repeats_left = False, None, 0
            for slot in list(lane.rows):
                pipe.preempt(slot)
            pipe.end_batch(lane)
            lane.rows, lane.array = [], NO_SLOTS
            lane.kv_tokens, lane.steps_to_limit, lane.steps_to_block = 0, NO_LIMIT, 0
            lane.all_decode, lane.is_continuous = False, True

    def move_waiting(self, pipeline: int, now_ns: int) -> list[int]:
        """Send what waits at a pipeline to open ones as if it arrived now, where it fits; return which got some."""
        touched: set[int] = set()
        old = self._pipes[pipeline]
        for slot in old.waiting.slots.tolist():
            arrival = self._columns.arrival_of(slot)
            index = self.choose(arrival, now_ns)
            if index is None or misfit(arrival, self._pipes[index]):
                index = next((i for i in self.open if not misfit(arrival, self._pipes[i])), None)
            if index is None or index == pipeline:
                continue
            old.waiting.remove(np.array([slot]))
            old.give_up(slot)
            self._pipes[index].take(slot)
            touched.add(index)
        return sorted(touched)
