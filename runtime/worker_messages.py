"""What engine and workers say to each other, as frames."""

from __future__ import annotations

from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.executor import Emulation, ExecutorSpec, SliceSpec, WorkerSpec
from runtime.steps import IntArray, RowLogprobs, RowSampling, StageFree, StepInput, StepOutput
from runtime.transport.frames import Frame
from slob_opt.errors import EngineError


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
    BROKEN = 38


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


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_FIXED = 12  # pipeline, lane, step, stage, is padded, B, E, T, entries of the table, spans, dtype, hidden size
_PER_ROW, _PER_DRAW = 4, 4


def step_frame(
    kind: Kind, step: StepInput, stage: int, hidden: torch.Tensor | None = None,
    spans: tuple[tuple[int, int], ...] = (),
) -> Frame:  # fmt: skip
    """Return a step on its way to a stage, with what the stages before made of it.

    Everything but hidden states is in one array of int64 and one of float64: a frame with an array for each field takes
    several times as long to write and to read.

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

    Raises
    ------
    EngineError
        When the step's arrays contradict each other.
    """
    num_rows = step.lengths.size
    if not num_rows == step.cached.size == step.num_blocks.size == step.emits.size:
        raise EngineError(f"step {step.step} has {num_rows} rows, but not in all of its arrays")
    fixed = [
        step.pipeline, step.lane, step.step, stage, int(step.is_padded), num_rows, len(step.sampling),
        step.tokens.size, step.table.size,
    ]  # fmt: skip
    draws = [(row.top_k, row.seed, row.position, -1 if row.num_logprobs is None else row.num_logprobs)
             for row in step.sampling]  # fmt: skip
    rest = np.concatenate(
        [
            step.lengths, step.cached, step.num_blocks, step.emits,
            np.array(draws, np.int64).reshape(-1), step.tokens, step.table,
        ],
        dtype=np.int64,
    )  # fmt: skip
    arrays = {"floats": np.array([(row.temperature, row.top_p) for row in step.sampling], np.float64).reshape(-1)}
    return _with_states(kind, fixed, rest, arrays, hidden, spans)


def passed_on(frame: Frame, stage: int, hidden: torch.Tensor, spans: tuple[tuple[int, int], ...]) -> Frame:
    """Return what :func:`step_frame` would for the next stage, from the frame that the step came in."""
    ints = frame.arrays["ints"]
    fixed = ints[: _FIXED - 3].tolist()
    fixed[3] = stage
    rest = ints[_FIXED + 2 * int(ints[_FIXED - 3]) :]
    return _with_states(Kind.HIDDEN, fixed, rest, {"floats": frame.arrays["floats"]}, hidden, spans)


def _with_states(
    kind: Kind, fixed: list[int], rest: IntArray, arrays: dict[str, Any], hidden: torch.Tensor | None,
    spans: tuple[tuple[int, int], ...],
) -> Frame:  # fmt: skip
    code, width = -1, 0
    if hidden is not None:
        code, width = _DTYPES.index(hidden.dtype), hidden.shape[1]
        arrays["hidden"] = hidden.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    head = [*fixed, len(spans), code, width, *(at for span in spans for at in span)]
    return Frame(kind, {}, {"ints": np.concatenate([np.array(head, np.int64), rest]), **arrays})


def step_place(frame: Frame) -> tuple[int, int, int]:
    """Return pipeline, step and stage of a step's message; raises EngineError when it doesn't say."""
    try:
        pipeline, _, step, stage = frame.arrays["ints"][:4].tolist()
    except (KeyError, ValueError) as error:
        raise EngineError("a step's message doesn't say where it goes") from error
    return pipeline, step, stage


def step_of(
    frame: Frame, *, draws: bool = True
) -> tuple[StepInput, int, torch.Tensor | None, tuple[tuple[int, int], ...]]:
    """Return the step of a message, the stage it goes to, its hidden states and the spans so far.

    Parameters
    ----------
    frame
        As :func:`step_frame` makes it.
    draws
        Whether `sampling` is wanted; only the last stage needs it, and an object for each row takes time.

    Raises
    ------
    EngineError
        When the message contradicts itself.
    """
    try:
        return _step_of(frame.arrays["ints"], frame.arrays["floats"], frame.arrays.get("hidden"), draws)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise EngineError(f"a step's message is damaged: {error}") from error


def _step_of(
    ints: IntArray, floats: NDArray[np.float64], states: NDArray[np.uint8] | None, wants_draws: bool
) -> tuple[StepInput, int, torch.Tensor | None, tuple[tuple[int, int], ...]]:
    fixed = ints[:_FIXED].tolist()
    pipeline, lane, number, stage, padded, num_rows, num_draws, num_tokens, entries, num_spans, code, width = fixed
    sizes = [2 * num_spans, *[num_rows] * _PER_ROW, _PER_DRAW * num_draws, num_tokens, entries]
    if min(sizes) < 0 or _FIXED + sum(sizes) != ints.size or floats.size != 2 * num_draws:
        raise ValueError("its sizes don't add up")
    parts, at = [], _FIXED
    for size in sizes:
        parts.append(ints[at : at + size])
        at += size
    when, lengths, cached, num_blocks, emits, draws, tokens, table = parts
    sampling: tuple[RowSampling, ...] = ()
    if wants_draws:
        sampling = tuple(
            RowSampling(temperature, top_p, top_k, seed, position, None if num_logprobs < 0 else num_logprobs)
            for (temperature, top_p), (top_k, seed, position, num_logprobs) in zip(
                floats.reshape(-1, 2).tolist(), draws.reshape(-1, _PER_DRAW).tolist(), strict=True
            )
        )
    step = StepInput(
        pipeline, lane, number, tokens, lengths, cached, num_blocks, table, emits.astype(np.bool_), sampling,
        bool(padded),
    )  # fmt: skip
    hidden = None
    if states is not None:
        if not 0 <= code < len(_DTYPES):
            raise ValueError(f"type {code} of hidden states is unknown")
        hidden = torch.from_numpy(states).view(_DTYPES[code]).view(num_tokens, width)
    ends = when.tolist()
    return step, stage, hidden, tuple(zip(ends[::2], ends[1::2], strict=True))


def output_frame(output: StepOutput) -> Frame:
    """Return what came of a step, as a message."""
    spans = [at for span in zip(output.start_ns, output.end_ns, strict=True) for at in span]
    head = [output.pipeline, output.lane, output.step, len(spans) // 2, *spans]
    values = {}
    if any(one is not None for one in output.logprobs):
        values["logprobs"] = [None if one is None else [one.chosen, one.top_ids, one.top] for one in output.logprobs]
    ints = np.concatenate([np.array(head, np.int64), np.asarray(output.tokens, np.int64)])
    return Frame(Kind.OUTPUT, values, {"ints": ints})


def output_of(frame: Frame) -> StepOutput:
    """Return what came of a step."""
    ints = frame.arrays["ints"]
    pipeline, lane, step, num_spans = ints[:4].tolist()
    ends = ints[4 : 4 + 2 * num_spans].tolist()
    tokens = ints[4 + 2 * num_spans :]
    logprobs = tuple(
        None if one is None else RowLogprobs(one[0], tuple(one[1]), tuple(one[2]))
        for one in frame.values.get("logprobs", [None] * tokens.size)
    )
    return StepOutput(pipeline, lane, step, tokens, logprobs, tuple(ends[::2]), tuple(ends[1::2]))


def free_frame(pipeline: int, step: int, at_ns: int) -> Frame:
    """Return that a pipeline's first stage may take the next step, as a message."""
    return Frame(Kind.FREE, {}, {"ints": np.array([pipeline, step, at_ns], np.int64)})


def free_of(frame: Frame) -> StageFree:
    """Return which pipeline's first stage is free."""
    pipeline, step, at_ns = frame.arrays["ints"].tolist()
    return StageFree(pipeline, step, at_ns)
