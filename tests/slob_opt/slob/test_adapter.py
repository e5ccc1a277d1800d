"""When the adapter climbs, when it comes down, and what it must not do."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_setups import fixed_clock

from slob_opt.errors import InputError
from slob_opt.problem.placement import Pipeline, Stage
from slob_opt.scheduling.policy import PipelineLimits
from slob_opt.slob.adapter import Adapter, AdapterState, Seen
from slob_opt.slob.ladder import Ladder, Lengths, Server

MINUTE = 60_000_000_000
MEAN = Lengths(100.0, 50.0)


def ladder() -> Ladder:
    """Three equal cards, levels of one, two and three of them; each carries the same."""
    clock = fixed_clock((10_000_000, 1_000_000))
    servers = [Server(Pipeline((Stage((card,), 0, 1),)), PipelineLimits(1, 10, 999), clock) for card in range(3)]
    return Ladder.of(servers, [("one", (0,)), ("two", (0, 1)), ("three", (0, 1, 2))], MEAN)


def seen(minute: int, arrivals: int, waiting: int = 0) -> Seen:
    return Seen(minute * MINUTE, arrivals, 100 * arrivals, arrivals, 50 * arrivals, waiting)


def walk(adapter: Adapter, arrivals: list[int], start: AdapterState | None = None) -> list[AdapterState]:
    """Decide once a minute."""
    states = [start or adapter.start()]
    for minute, count in enumerate(arrivals, start=1):
        states.append(adapter.decide(states[-1], seen(minute, count)))
    return states[1:]


def test_one_card_carries_five_a_second_here() -> None:
    """100 x 1 ms + 50 x 20 ms / 10 rows: 0.2 s a request; alone it takes 0.1 s + 50 x 11 ms."""
    assert ladder().rate(0, MEAN) == pytest.approx(5.0)
    assert ladder().service_s(MEAN) == pytest.approx(0.65)


def test_it_climbs_as_far_as_the_load_asks() -> None:
    adapter = Adapter(ladder(), margin=0.0, dwell_s=0.0, window_s=60.0, climb_window_s=60.0)
    # 0.7 x 5 = 3.5 a second is 210 a minute.
    levels = [state.level for state in walk(adapter, [200, 215, 430, 200])]
    # 430 a minute asks for more than 0.7 of two cards; 200 fits half of two (5 a second), not half of one.
    assert levels == [0, 1, 2, 1]
    assert walk(adapter, [300])[0].concurrency == pytest.approx(5.0 * 0.65)


def test_hysteresis_keeps_it_where_it_is() -> None:
    adapter = Adapter(ladder(), margin=0.0, dwell_s=0.0, window_s=60.0, climb_window_s=60.0)
    # Between 0.5 and 0.7 of one card it stays on whatever level it has.
    assert [state.level for state in walk(adapter, [180, 180, 250, 180, 180, 140])] == [0, 0, 1, 1, 1, 0]


def test_dwell_holds_for_both_directions() -> None:
    adapter = Adapter(ladder(), margin=0.0, dwell_s=600.0, window_s=60.0, climb_window_s=60.0)
    levels = [state.level for state in walk(adapter, [300] + [900] * 10 + [0] * 12)]
    assert levels == [1] * 10 + [2] * 10 + [0] * 3  # nothing arrived in the window: nothing is asked for
    levels = [state.level for state in walk(adapter, [300] + [900] * 10 + [10] * 12)]
    assert levels == [1] * 10 + [2] * 10 + [0] * 3


def test_a_rush_is_seen_within_minutes_and_its_end_later() -> None:
    """60 a minute for ten minutes, then 300: the mean of three minutes passes 210 after two, of ten after seven."""
    adapter = Adapter(ladder(), margin=0.0, dwell_s=0.0)
    blind = Adapter(ladder(), margin=0.0, dwell_s=0.0, climb_window_s=600.0)
    load = [60] * 10 + [300] * 10 + [60] * 12
    quick, slow = ([state.level for state in walk(one, load)] for one in (adapter, blind))
    assert (quick.index(1), slow.index(1)) == (11, 16)
    # Both come down when the mean of ten minutes is half of what one card carries: 150 a minute.
    assert [levels.index(0, 20) for levels in (quick, slow)] == [26, 26]


def test_it_comes_down_when_nothing_arrives_any_more() -> None:
    """All of a rush arrive and finish within the minute before it climbs: the window is empty when it may go down."""
    adapter = Adapter(ladder(), margin=0.0)
    levels = [state.level for state in walk(adapter, [0] * 19 + [1500] + [0] * 30)]
    assert levels[18:21] == [0, 2, 2]
    assert levels[-1] == 0


def test_those_that_wait_count() -> None:
    adapter = Adapter(ladder(), margin=0.0, dwell_s=0.0, window_s=60.0, climb_window_s=60.0)
    state = adapter.decide(adapter.start(), seen(1, 100, waiting=150))
    assert state.level == 1


def test_longer_answers_make_the_same_rate_more() -> None:
    adapter = Adapter(ladder(), margin=0.0, dwell_s=0.0, window_s=60.0, climb_window_s=60.0)
    short = adapter.decide(adapter.start(), Seen(MINUTE, 150, 15_000, 150, 7_500, 0))
    long = adapter.decide(adapter.start(), Seen(MINUTE, 150, 15_000, 150, 45_000, 0))
    assert (short.level, long.level) == (0, 2)


def test_the_margin_is_that_of_poisson() -> None:
    calm, wary = (
        Adapter(ladder(), margin=margin, dwell_s=0.0, window_s=60.0, climb_window_s=60.0) for margin in (0.0, 1.0)
    )
    # 200 + sqrt(200) = 214 > 210.
    assert calm.decide(calm.start(), seen(1, 200)).level == 0
    assert wary.decide(wary.start(), seen(1, 200)).level == 1


@given(arrivals=st.lists(st.integers(0, 1500), min_size=1, max_size=60), dwell=st.sampled_from([0.0, 300.0, 600.0]))
@settings(max_examples=100, deadline=None)
def test_levels_exist_and_dwell_holds(arrivals: list[int], dwell: float) -> None:
    adapter = Adapter(ladder(), dwell_s=dwell)
    states = walk(adapter, arrivals)
    assert all(0 <= state.level <= 2 for state in states)
    changes = [i for i, (a, b) in enumerate(itertools.pairwise(states)) if a.level != b.level]
    assert all((b - a) * 60.0 >= dwell for a, b in itertools.pairwise(changes))
    assert states == walk(adapter, arrivals)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"period_s": 0.0}, "period 0.0 s"),
        ({"window_s": 30.0}, "expected 0 < period <= window"),
        ({"climb_window_s": 30.0}, "climb_window_s is 30.0, expected from the period 60.0"),
        ({"climb_window_s": 900.0}, "to the window 600.0"),
        ({"dwell_s": -1.0}, "dwell_s -1.0"),
        ({"down_share": 0.9}, "expected 0 < down <= up"),
        ({"lowest": 3}, "lowest level is 3 of 3"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Adapter(ladder(), **parameters)  # type: ignore[arg-type]
