from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_profiles import small_model

from runtime.calibration_fit import KNOT_CHOICES
from runtime.calibration_shapes import (
    QUICK,
    ShapeLimits,
    blocks_of,
    calibration_shapes,
    calibration_slices,
    step_of,
)
from slob_opt.cost.batch import BatchShape
from slob_opt.cost.profiled import parts
from slob_opt.errors import InputError

limits = st.builds(ShapeLimits, st.integers(1, 300), st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 40_000))


@given(limits)
def test_shapes_keep_within_their_limits(limit: ShapeLimits) -> None:
    shapes = calibration_shapes(limit)
    assert len(set(shapes)) == len(shapes)
    for shape in shapes:
        ends = [*shape.decode_contexts, *(cached + size for cached, size in shape.prefill_chunks)]
        assert sum(ends) <= limit.max_kv_tokens
        assert len(shape.decode_contexts) <= max(2, limit.max_batch)
        assert max(ends) <= max(limit.max_context_tokens, limit.max_chunk_tokens)


@given(st.integers(1, 200), st.none() | st.integers(8, 200))
def test_slices_are_of_the_model_and_within_what_may_be_held(num_layers: int, held: int | None) -> None:
    slices = calibration_slices(num_layers, held)
    assert all(0 <= first < end <= num_layers for first, end in slices)
    assert any(first == 0 for first, _ in slices)
    assert any(end == num_layers for _, end in slices)
    if num_layers >= 8:
        assert sum(end - first for first, end in slices) <= (held or num_layers)


@pytest.mark.parametrize("num_layers", [4, 5, 8, 30, 32, 80])
@pytest.mark.parametrize("limit", [QUICK, ShapeLimits(), QUICK.within(64)])
def test_every_part_can_be_told_apart(num_layers: int, limit: ShapeLimits) -> None:
    """All parts have their own pattern over slices and shapes: the fit's matrix has full rank."""
    model = small_model(num_layers)
    knots = KNOT_CHOICES[3]
    rows = np.array(
        [
            parts(model, first, end, shape, knots, (1, 2))
            for first, end in calibration_slices(num_layers)
            for shape in calibration_shapes(limit)
        ]
    )
    rows = rows[:, np.any(rows != 0, axis=0)]
    scaled = rows / np.linalg.norm(rows, axis=0)
    assert np.linalg.matrix_rank(scaled, tol=1e-6) == rows.shape[1]


def test_few_layers_of_a_long_model_are_refused() -> None:
    with pytest.raises(InputError, match="at most 4 layers may be held, expected at least 8 or all 30"):
        calibration_slices(30, 4)
    with pytest.raises(InputError, match="max_batch is 0"):
        ShapeLimits(max_batch=0)


def test_a_shape_as_a_step() -> None:
    """Decodes over 17 and 16 tokens take 2 and 1 blocks of 16, the chunk of 8 after 10 takes 2."""
    shape = BatchShape.ragged((17, 16), ((10, 8),))
    step = step_of(shape, 16, 100)
    assert step.cached.tolist() == [16, 15, 10]
    assert step.lengths.tolist() == [1, 1, 8]
    assert step.num_blocks.tolist() == [2, 1, 2]
    assert step.table.tolist() == [0, 1, 2, 3, 4]
    assert blocks_of(shape, 16) == 5
    assert step.tokens.size == 10
    assert step.tokens.max() < 100
    assert step.emits.all()
    assert len(step.sampling) == 3
    assert step_of(shape, 16, 100).tokens.tolist() == step.tokens.tolist()
