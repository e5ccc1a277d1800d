"""What engine and workers say to each other, as frames."""

from __future__ import annotations

from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.executor import Emulation, ExecutorSpec, SliceSpec, WorkerSpec
from runtime.steps import RowLogprobs, RowSampling, StepInput, StepOutput
from runtime.transport.frames import Frame


class Kind(IntEnum):
    """Kinds of messages: the first ones come from the engine, the last ones from workers."""

    SETUP = 1
    LOAD = 2
    CACHES = 3
    PEER = 4
    DIAL = 5
    EXPECT = 6
    STEP = 7
    DROP = 8
    PING = 9
    STOP = 10
    PROBE = 11
    HIDDEN = 20
    ECHO = 21
    PROGRESS = 30
    LOADED = 31
    READY = 32
    FREE = 33
    OUTPUT = 34
    FAILED = 35
    PONG = 36
    PORT = 37


def setup_frame(spec: ExecutorSpec, worker: WorkerSpec, num_threads: int) -> Frame:
    """Return what a worker needs to know first."""
    return Frame(
        Kind.SETUP,
        {
            "name": worker.name,
            "torch_device": worker.torch_device,
            "emulation": asdict(worker.emulation),
            "folder": str(spec.folder),
            "dtype": spec.dtype,
            "block_tokens": spec.block_tokens,
            "max_step_tokens": spec.max_step_tokens,
            "num_threads": num_threads,
        },
    )


def emulation_of(values: Any) -> Emulation:
    """Return the emulation that a message describes."""
    return Emulation(float(values["slowdown"]), values["memory_bytes"])


def folder_of(values: Any) -> Path:
    """Return the model's folder that a message names."""
    return Path(values["folder"])


def slices_frame(kind: Kind, slices: tuple[SliceSpec, ...], **more: Any) -> Frame:
    """Return a message about slices."""
    return Frame(kind, {"slices": [asdict(piece) for piece in slices], **more})


def slices_of(frame: Frame) -> list[SliceSpec]:
    """Return the slices that a message is about."""
    return [SliceSpec(**piece) for piece in frame.values["slices"]]


_ARRAYS = ("tokens", "lengths", "cached", "num_blocks", "table", "emits")


def step_frame(
    kind: Kind, step: StepInput, stage: int, hidden: torch.Tensor | None = None,
    spans: tuple[tuple[int, int], ...] = (),
) -> Frame:  # fmt: skip
    """Return a step on its way to a stage, with what the stages before made of it.

    Parameters
    ----------
    kind
        STEP or HIDDEN.
    stage
        To which stage it goes.
    hidden
        (T, hidden size), on any device.
    spans
        When each stage before began and ended it.
    """
    values: dict[str, Any] = {
        "pipeline": step.pipeline,
        "lane": step.lane,
        "step": step.step,
        "stage": stage,
        "padded": step.is_padded,
        "spans": spans,
        "sampling": [
            [row.temperature, row.top_p, row.top_k, row.seed, row.position, row.num_logprobs] for row in step.sampling
        ],
    }
    arrays: dict[str, Any] = {name: getattr(step, name) for name in _ARRAYS}
    if hidden is not None:
        values["dtype"], values["shape"] = str(hidden.dtype).removeprefix("torch."), list(hidden.shape)
        arrays["hidden"] = hidden.detach().contiguous().cpu().view(torch.uint8).numpy().reshape(-1)
    return Frame(kind, values, arrays)


def step_of(frame: Frame) -> tuple[StepInput, int, torch.Tensor | None, tuple[tuple[int, int], ...]]:
    """Return the step of a message, the stage it goes to, its hidden states and the spans so far."""
    values, arrays = frame.values, frame.arrays
    step = StepInput(
        values["pipeline"], values["lane"], values["step"], arrays["tokens"], arrays["lengths"], arrays["cached"],
        arrays["num_blocks"], arrays["table"], arrays["emits"],
        tuple(RowSampling(*row) for row in values["sampling"]), values["padded"],
    )  # fmt: skip
    hidden = None
    if "hidden" in arrays:
        raw = torch.from_numpy(arrays["hidden"])
        hidden = raw.view(getattr(torch, values["dtype"])).view(values["shape"])
    spans = tuple((int(start), int(end)) for start, end in values["spans"])
    return step, int(values["stage"]), hidden, spans


def output_frame(output: StepOutput) -> Frame:
    """Return what came of a step, as a message."""
    return Frame(
        Kind.OUTPUT,
        {
            "pipeline": output.pipeline,
            "lane": output.lane,
            "step": output.step,
            "start_ns": output.start_ns,
            "end_ns": output.end_ns,
            "logprobs": [
                None if one is None else [one.chosen, one.top_ids, one.top] for one in output.logprobs
            ],
        },
        {"tokens": np.asarray(output.tokens, np.int64)},
    )  # fmt: skip


def output_of(frame: Frame) -> StepOutput:
    """Return what came of a step."""
    values = frame.values
    logprobs = tuple(
        None if one is None else RowLogprobs(one[0], tuple(one[1]), tuple(one[2])) for one in values["logprobs"]
    )
    return StepOutput(
        values["pipeline"], values["lane"], values["step"], frame.arrays["tokens"], logprobs,
        tuple(values["start_ns"]), tuple(values["end_ns"]),
    )  # fmt: skip
