"""Steps for executors without an engine: whole prompts, then one token after the other, several lanes at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from runtime.executor import Emulation, Executor, ExecutorSpec, SliceSpec, WorkerSpec
from runtime.steps import RowSampling, StageFree, StepInput, StepOutput

BLOCK_TOKENS = 16
NUM_BLOCKS = 64

Stages = Sequence[tuple[str, int, int]]
"""Device, first and end layer of each stage of a pipeline."""


def workers_of(
    pipelines: Sequence[Stages], *, first_pipeline: int = 0, emulation: dict[str, Emulation] | None = None
) -> tuple[WorkerSpec, ...]:
    """Return the workers of some pipelines, in the order in which their devices come."""
    slices: dict[str, list[SliceSpec]] = {}
    for number, stages in enumerate(pipelines, first_pipeline):
        for place, (name, first, end) in enumerate(stages):
            slices.setdefault(name, []).append(SliceSpec(number, place, len(stages), first, end))
    given = emulation or {}
    return tuple(
        WorkerSpec(name, "cpu", tuple(pieces), given.get(name, Emulation())) for name, pieces in slices.items()
    )


def spec_of(folder: Path, pipelines: Sequence[Stages], **more: object) -> ExecutorSpec:
    """Return what an executor of some pipelines is to hold, in float32."""
    emulation = more.pop("emulation", None)
    given: dict[str, object] = {
        "block_tokens": BLOCK_TOKENS,
        "max_rows": 16,
        "num_blocks": NUM_BLOCKS,
        "max_step_tokens": 64,
        "workers": workers_of(pipelines, emulation=emulation),  # type: ignore[arg-type]
        **more,
    }
    return ExecutorSpec(folder, "float32", **given)  # type: ignore[arg-type]


@dataclass
class Lane:
    """A few answers that are computed together.

    Attributes
    ----------
    prompts
        Theirs.
    tables
        KV blocks of each.
    ids
        Prompt and answer so far of each.
    """

    prompts: list[list[int]]
    tables: list[list[int]]
    ids: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids = [list(prompt) for prompt in self.prompts]

    def step(self, pipeline: int, lane: int, number: int) -> StepInput:
        """Return the next step: whole prompts, then the newest token of each answer."""
        is_first = self.ids == self.prompts
        lengths = [len(ids) if is_first else 1 for ids in self.ids]
        rows = list(zip(self.ids, lengths, strict=True))
        done = [len(ids) - len(prompt) for ids, prompt in zip(self.ids, self.prompts, strict=True)]
        return StepInput(
            pipeline, lane, number,
            np.array([token for ids, length in rows for token in ids[-length:]], np.int64),
            np.array(lengths, np.int64),
            np.array([len(ids) - length for ids, length in rows], np.int64),
            np.array([len(table) for table in self.tables], np.int64),
            np.array([block for table in self.tables for block in table], np.int64),
            np.ones(len(rows), np.bool_),
            tuple(RowSampling(position=position) for position in done),
        )  # fmt: skip


def lanes_of(prompts: Sequence[Sequence[int]], num_tokens: int, num_lanes: int) -> list[Lane]:
    """Deal prompts to lanes, each with the blocks that its answer will need."""
    lanes = [Lane([], []) for _ in range(min(num_lanes, len(prompts)))]
    block = 0
    for place, prompt in enumerate(prompts):
        need = -(-(len(prompt) + num_tokens) // BLOCK_TOKENS)
        lane = lanes[place % len(lanes)]
        lane.prompts.append(list(prompt))
        lane.tables.append(list(range(block, block + need)))
        block += need
    assert block <= NUM_BLOCKS
    return [Lane(lane.prompts, lane.tables) for lane in lanes]


@dataclass
class Played:
    """What came of it.

    Attributes
    ----------
    answers
        New tokens of each prompt.
    outputs
        Of all steps, as they came.
    most_in_flight
        Steps of the pipeline at a time.
    """

    answers: list[list[int]]
    outputs: list[StepOutput]
    most_in_flight: int


def play(
    executor: Executor, pipeline: int, prompts: Sequence[Sequence[int]], num_tokens: int, num_lanes: int = 1,
    first_step: int = 0,
) -> Played:  # fmt: skip
    """Let a pipeline answer greedily: a lane's next step follows its output, and all lanes wait for the first stage."""
    lanes = lanes_of(prompts, num_tokens, num_lanes)
    ready, outputs = deque(range(len(lanes))), []
    left = [num_tokens] * len(lanes)
    in_flight, most, number, is_free = 0, 0, first_step, True
    while any(left):
        while is_free and ready:
            lane = ready.popleft()
            executor.submit(lanes[lane].step(pipeline, lane, number))
            number, is_free, in_flight = number + 1, False, in_flight + 1
            most = max(most, in_flight)
        for event in executor.poll(60.0):
            if isinstance(event, StageFree):
                assert event.pipeline == pipeline
                is_free = True
                continue
            assert isinstance(event, StepOutput), event
            outputs.append(event)
            in_flight -= 1
            for ids, token in zip(lanes[event.lane].ids, event.tokens.tolist(), strict=True):
                ids.append(token)
            left[event.lane] -= 1
            if left[event.lane]:
                ready.append(event.lane)
    answers: list[list[int]] = [[] for _ in prompts]
    for place in range(len(prompts)):
        lane, row = lanes[place % len(lanes)], place // len(lanes)
        answers[place] = lane.ids[row][len(lane.prompts[row]) :]
    return Played(answers, outputs, most)
