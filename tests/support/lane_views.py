"""Views of a lane with requests put in by hand, for what a policy decides in one situation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.scheduling.columns import RequestColumns, State, running_at, waiting_at
from slob_opt.scheduling.policy import LaneView, PipelineLimits

S = 1_000_000_000


@dataclass(frozen=True)
class Held:
    """A request; one that runs decodes, unless some of its prompt is still left."""

    prompt: int
    generated: int = 0
    arrival_s: float = 0.0
    last_token_s: float = 0.0
    max_new: int = 1000
    left: int = 1
    predicted: float = float("nan")
    priority: float = 1.0


def lane_view(
    clock: PipelineClock, limits: PipelineLimits, rows: list[Held], waiting: list[Held], *, free_blocks: int,
    now_s: float = 0.0,
) -> LaneView:  # fmt: skip
    """Return the view of a lane; slots and numbers are 0, 1, ... through rows and then those that wait."""
    columns = RequestColumns()
    for slot, held in enumerate([*rows, *waiting]):
        assert columns.take() == slot
        known = held.prompt + held.generated
        cached = known - held.left if slot < len(rows) else 0
        state = State.RUNNING if slot < len(rows) else State.PREEMPTED if held.generated else State.WAITING
        for name, value in (
            ("request", slot), ("arrival_ns", round(held.arrival_s * S)), ("prompt", held.prompt),
            ("max_new", held.max_new), ("priority", held.priority), ("ttft_s", np.nan), ("tpot_s", np.nan),
            ("state", state), ("place", running_at(0, 0) if slot < len(rows) else waiting_at(0)),
            ("cached", cached), ("left", known - cached), ("generated", held.generated),
            ("blocks", limits.blocks_of(cached if held.left == 1 else known) if slot < len(rows) else 0),
            ("last_token_ns", round(held.last_token_s * S)), ("predicted", held.predicted),
        ):  # fmt: skip
            columns.arrays[name][slot] = value
    return LaneView(
        round(now_s * S), 0, 0, limits, columns, np.arange(len(rows)), np.arange(len(waiting)) + len(rows),
        max(0, limits.lane_rows - len(rows)), free_blocks, 0, clock, False,
    )  # fmt: skip
