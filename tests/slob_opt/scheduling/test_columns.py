"""Slots of requests: reuse, growth, and what can't be written."""

from __future__ import annotations

import pytest

from slob_opt.scheduling.columns import RequestColumns, State, running_at, waiting_at


def test_slots_are_used_again_and_columns_grow() -> None:
    columns = RequestColumns(4)
    taken = [columns.take() for _ in range(9)]
    assert sorted(taken) == list(range(9))
    assert columns.capacity == 16
    columns.arrays["prompt"][taken[0]] = 7
    assert columns.prompt[taken[0]] == 7
    columns.release(3)
    assert columns.state[3] == State.FREE
    assert columns.take() == 3


def test_growing_keeps_values() -> None:
    columns = RequestColumns(2)
    slot = columns.take()
    columns.arrays["cached"][slot] = 11
    for _ in range(5):
        columns.take()
    assert columns.cached[slot] == 11


def test_places_of_pipelines_and_lanes_differ() -> None:
    places = [waiting_at(p) for p in range(4)] + [running_at(p, lane) for p in range(4) for lane in range(9)]
    assert len(set(places)) == len(places)
    free = RequestColumns(2)
    assert free.place[0] not in places


def test_views_are_read_only() -> None:
    columns = RequestColumns()
    with pytest.raises(ValueError, match="read-only"):
        columns.generated[0] = 1
