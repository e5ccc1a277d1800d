"""The stage clock against the roofline it stands for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slob_opt.cost.batch import BatchShape
from slob_opt.cost.roofline import CardGroup, stage_s
from slob_opt.cost.stage_clock import PS_PER_S, StageClock, work_of_rows
from slob_opt.errors import InputError
from slob_opt.problem.catalogue.gpus import gpu_device
from slob_opt.problem.catalogue.models import model as catalogue_model
from slob_opt.problem.device import Link

MODELS = ("llama-2-7b", "mistral-7b", "mixtral-8x7b", "gemma-2-9b")


def shapes(rng: np.random.Generator) -> BatchShape:
    decodes = rng.integers(1, 6000, rng.integers(0, 40)).tolist()
    chunks = [(int(c), int(n)) for c, n in zip(rng.integers(0, 5000, 3), rng.integers(1, 3000, 3), strict=True)]
    return BatchShape.ragged(decodes, chunks[: int(rng.integers(0 if decodes else 1, 4))])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("degree", [1, 2])
def test_clock_tells_the_rooflines_time(name: str, degree: int) -> None:
    model = catalogue_model(name)
    group = CardGroup(gpu_device("a100-pcie-40gb", "n/0"), degree, Link(20e9, 1e-5) if degree > 1 else None)
    rng = np.random.default_rng(degree)
    half = model.num_layers // 2
    for first, end in ((0, model.num_layers), (0, half), (half, model.num_layers), (half - 1, half + 1)):
        clock = StageClock(group, model, first, end)
        for _ in range(25):
            shape = shapes(rng)
            exact = stage_s(group, model, first, end, shape)
            assert clock.ps(clock.work_of(shape)) / PS_PER_S == pytest.approx(exact, rel=5e-4)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_rows_and_shapes_are_the_same_work(data: st.DataObject) -> None:
    clock = StageClock(CardGroup(gpu_device("l4", "n/0")), catalogue_model("mistral-7b"), 0, 2)
    size = data.draw(st.integers(1, 8))
    cached = np.array(data.draw(st.lists(st.integers(0, 9000), min_size=size, max_size=size)))
    is_decode = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    tokens = np.where(is_decode, 1, np.array(data.draw(st.lists(st.integers(1, 5000), min_size=size, max_size=size))))
    is_padded = data.draw(st.booleans())
    shape = BatchShape.of(
        (cached[is_decode] + 1).tolist(),
        list(zip(cached[~is_decode].tolist(), tokens[~is_decode].tolist(), strict=True)),
        is_padded=is_padded,
    )
    work, padding = work_of_rows(cached, tokens, is_decode, clock.windows, is_padded=is_padded)
    assert work == clock.work_of(shape)
    assert padding == shape.padding_tokens


def test_wrong_layers_are_refused() -> None:
    with pytest.raises(InputError, match=r"layers \[3, 3\) of a model with 32 layers"):
        StageClock(CardGroup(gpu_device("l4", "n/0")), catalogue_model("llama-2-7b"), 3, 3)
