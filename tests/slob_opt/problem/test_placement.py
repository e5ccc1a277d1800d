from __future__ import annotations

import pytest

from slob_opt.errors import InputError
from slob_opt.problem import Pipeline, Placement, Stage


def test_counts_of_a_placement():
    left = Pipeline((Stage((0,), 0, 3), Stage((1, 2), 3, 4)), num_micro_batches=2, batch_size=8)
    right = Pipeline((Stage((3,), 0, 4),))
    made = Placement((left, right))
    assert (left.num_layers, left.num_in_flight, left.cards) == (4, 16, (0, 1, 2))
    assert made.used_cards == {0, 1, 2, 3}
    assert made.has_disjoint_pipelines
    assert not Placement((left, left)).has_disjoint_pipelines


@pytest.mark.parametrize("stages", [((0, 4), (4, 7)), ((0, 7), (7, 14))])
def test_layers_that_do_not_add_up_differ(stages):
    """Case P32: two pipelines of one model execute the same number of layers."""
    short = Pipeline(tuple(Stage((i,), *ends) for i, ends in enumerate(stages)))
    with pytest.raises(InputError, match="expected the same number"):
        Placement((short, Pipeline((Stage((9,), 0, 30),))))


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((), "at least one stage"),
        ((Stage((0,), 1, 2),), "starts at layer 1"),
        ((Stage((0,), 0, 2), Stage((1,), 3, 4)), "ends at layer 2 and the next starts at 3"),
        ((Stage((0,), 0, 2), Stage((1,), 1, 4)), "ends at layer 2 and the next starts at 1"),
    ],
)
def test_pipelines_execute_every_layer_once(stages, message):
    with pytest.raises(InputError, match=message):
        Pipeline(stages)


@pytest.mark.parametrize("wrong", [((), 0, 1), ((0, 0), 0, 1), ((-1,), 0, 1), ((0,), 1, 1), ((0,), -1, 1)])
def test_wrong_stages(wrong):
    with pytest.raises(InputError):
        Stage(*wrong)
