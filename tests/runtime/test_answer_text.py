"""Stop texts: found wherever they end first, however the text was cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.answer_text import StopWatch
from slob_opt.errors import InputError

LETTERS = "ab🙂"


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[str, int] | None:
    """The stop text that ends first, of several the longest, and where it ends; by trying all."""
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return max(met, key=len), end
    return None


@settings(max_examples=500, deadline=None)
@given(
    pieces=st.lists(st.text(LETTERS, max_size=4), max_size=10),
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=5), min_size=1, max_size=3).map(tuple),
)
def test_the_stop_that_ends_first_is_found_and_no_more_is_held_than_needed(
    pieces: list[str], stops: tuple[str, ...]
) -> None:
    watch, seen = StopWatch(stops), ""
    for piece in pieces:
        found = watch.find(piece)
        seen += piece
        expected = first_stop(seen, stops)
        if expected is None:
            assert found is None
            ends = [n for n in range(len(seen) + 1) if any(stop.startswith(seen[len(seen) - n :]) for stop in stops)]
            assert watch.num_held == max(ends)
            continue
        stop, end = expected
        assert found == (stop, len(seen) - end)
        return


def test_a_long_text_of_near_misses_costs_the_same_per_character() -> None:
    watch = StopWatch(("a" * 500 + "b",))
    assert watch.find("a" * 20_000) is None
    assert watch.num_held == 500
    assert watch.find("bc") == ("a" * 500 + "b", 1)


def test_an_empty_text_stops_nothing() -> None:
    with pytest.raises(InputError, match="empty stop text"):
        StopWatch(("a", ""))
