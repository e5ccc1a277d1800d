"""The waiting queue against a list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slob_opt.scheduling.waiting import WaitingQueue


@given(st.data())
def test_is_a_list(data: st.DataObject) -> None:
    queue, model = WaitingQueue(), []
    for fresh in range(data.draw(st.integers(0, 120))):
        move = data.draw(st.sampled_from(["append", "front", "insert", "first", "any"]))
        if move == "append":
            queue.append(fresh)
            model.append(fresh)
        elif move == "front":
            queue.push_front(fresh)
            model.insert(0, fresh)
        elif move == "insert":
            at = data.draw(st.integers(0, len(model)))
            queue.insert(at, fresh)
            model.insert(at, fresh)
        elif move == "first":
            count = data.draw(st.integers(0, len(model)))
            queue.remove(np.array(model[:count], np.int64))
            del model[:count]
        elif model:
            out = data.draw(st.lists(st.sampled_from(model), unique=True))
            queue.remove(np.array([*out, -5], np.int64))
            model = [slot for slot in model if slot not in out]
        assert queue.slots.tolist() == model
        assert len(queue) == len(model)


def test_grows_in_both_directions() -> None:
    queue = WaitingQueue()
    for slot in range(500):
        queue.append(slot)
        queue.push_front(-slot - 1)
    assert queue.slots.tolist() == list(range(-500, 500))


def test_views_are_read_only() -> None:
    queue = WaitingQueue()
    queue.append(1)
    assert not queue.slots.flags.writeable
