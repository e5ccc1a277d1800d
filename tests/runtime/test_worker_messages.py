"""Steps and their outputs as messages: the same on the other end, and damage is refused."""

from __future__ import annotations

import contextlib
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.steps import RowLogprobs, RowSampling, StageFree, StepInput, StepOutput
from runtime.transport.frames import Frame, pack, unpack
from runtime.worker_messages import (
    Kind,
    free_frame,
    free_of,
    output_frame,
    output_of,
    passed_on,
    step_frame,
    step_of,
    step_place,
)
from slob_opt.errors import EngineError

INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(0, 2**31)

DRAWS = st.builds(
    RowSampling, st.floats(0, 2), st.floats(0, 1), SMALL, INT64, SMALL, st.none() | st.integers(0, 20)
)  # fmt: skip


@st.composite
def steps(draw: st.DrawFn) -> StepInput:
    rows = draw(st.integers(0, 5))
    counts = st.lists(st.integers(0, 6), min_size=rows, max_size=rows)
    lengths, blocks = draw(counts), draw(counts)

    def numbers(size: int) -> np.ndarray:
        return np.array(draw(st.lists(SMALL, min_size=size, max_size=size)), np.int64)

    emits = np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), np.bool_)
    total = int(emits.sum())
    sampling = tuple(draw(st.lists(DRAWS, min_size=total, max_size=total)))
    return StepInput(
        draw(SMALL), draw(SMALL), draw(SMALL), numbers(sum(lengths)), np.array(lengths, np.int64), numbers(rows),
        np.array(blocks, np.int64), numbers(sum(blocks)), emits, sampling, draw(st.booleans()),
    )  # fmt: skip


def across(frame: Frame) -> Frame:
    """Return what the other end makes of a frame."""
    info, parts, _ = pack(frame)
    return unpack(frame.kind, info, np.frombuffer(b"".join(parts), np.uint8).copy())


def same(one: StepInput, other: StepInput) -> None:
    for field in fields(StepInput):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(ours, np.ndarray):
            assert ours.dtype == theirs.dtype
            assert ours.tolist() == theirs.tolist()
        else:
            assert ours == theirs


@given(steps())
def test_a_step_comes_out_as_it_went_in(step: StepInput) -> None:
    got, stage, hidden, spans = step_of(across(step_frame(Kind.STEP, step, 3)))
    same(step, got)
    assert (stage, hidden, spans) == (3, None, ())


@given(steps(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), st.integers(1, 5))
def test_hidden_states_and_spans_go_along_and_on(step: StepInput, dtype: torch.dtype, width: int) -> None:
    states = torch.randn(step.tokens.size, width, generator=torch.Generator().manual_seed(1)).to(dtype)
    first = across(step_frame(Kind.HIDDEN, step, 1, states, ((5, 2**62),)))
    assert step_place(first) == (step.pipeline, step.step, 1)
    on = across(passed_on(first, 2, states + 1, ((5, 2**62), (7, 8))))
    bare, _, _, _ = step_of(on, draws=False)
    assert bare.sampling == ()
    got, stage, hidden, spans = step_of(on)
    same(step, got)
    assert hidden is not None
    assert hidden.dtype == dtype
    assert torch.equal(hidden, states + 1)
    assert (stage, spans) == (2, ((5, 2**62), (7, 8)))


@given(steps(), st.data())
def test_a_damaged_step_is_refused_or_read_but_never_breaks(step: StepInput, data: st.DataObject) -> None:
    frame = step_frame(Kind.HIDDEN, step, 1, torch.zeros(step.tokens.size, 2))
    ints = frame.arrays["ints"].copy()
    ints[data.draw(st.integers(0, ints.size - 1))] = data.draw(INT64)
    with contextlib.suppress(EngineError):
        step_of(Frame(frame.kind, {}, {**frame.arrays, "ints": ints}))


@pytest.mark.parametrize("missing", ["ints", "floats"])
def test_a_step_without_its_arrays_is_refused(missing: str) -> None:
    step = StepInput(0, 0, 0, *[np.zeros(1, np.int64)] * 5, np.ones(1, np.bool_), (RowSampling(),))
    frame = step_frame(Kind.STEP, step, 0)
    arrays = {name: array for name, array in frame.arrays.items() if name != missing}
    with pytest.raises(EngineError, match="damaged"):
        step_of(Frame(frame.kind, {}, arrays))


def test_a_step_whose_arrays_contradict_each_other_is_not_sent() -> None:
    step = StepInput(0, 0, 4, *[np.zeros(1, np.int64)] * 5, np.ones(2, np.bool_), (RowSampling(),))
    with pytest.raises(EngineError, match="step 4 has 1 rows, but not in all of its arrays"):
        step_frame(Kind.STEP, step, 0)


LOGPROBS = st.lists(st.tuples(SMALL, st.floats(-100, 0)), max_size=3).map(
    lambda top: RowLogprobs(-0.5, tuple(token for token, _ in top), tuple(value for _, value in top))
)


@given(st.lists(st.tuples(SMALL, st.none() | LOGPROBS), max_size=4), st.lists(st.tuples(INT64, INT64), max_size=3))
def test_an_output_comes_out_as_it_went_in(
    rows: list[tuple[int, RowLogprobs | None]], spans: list[tuple[int, int]]
) -> None:
    output = StepOutput(
        1, 2, 3, np.array([token for token, _ in rows], np.int64), tuple(told for _, told in rows),
        tuple(start for start, _ in spans), tuple(end for _, end in spans),
    )  # fmt: skip
    got = output_of(across(output_frame(output)))
    assert got.tokens.tolist() == output.tokens.tolist()
    for name in ("pipeline", "lane", "step", "logprobs", "start_ns", "end_ns"):
        assert getattr(got, name) == getattr(output, name)


def test_a_free_stage_comes_out_as_it_went_in() -> None:
    assert free_of(across(free_frame(3, 5, 2**60))) == StageFree(3, 5, 2**60)
