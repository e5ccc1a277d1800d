"""A ladder in simulation: levels alone, and the adapter between them."""

from __future__ import annotations

import pytest

from experiments.ladder_days import Day
from experiments.ladder_run import level_plan, serve_adapter, serve_level
from experiments.serving_run import PolicyChoice
from slob_opt.problem.catalogue.clusters import cluster
from slob_opt.problem.catalogue.models import model
from slob_opt.problem.traffic import TrafficProfile
from slob_opt.slob.adapter import Adapter
from slob_opt.slob.ladder_planning import PlannedLadder, build_ladder

CHOICE = PolicyChoice("orca-paged", "orca-paged", "least-outstanding")


@pytest.fixture(scope="module")
def planned() -> PlannedLadder:
    return build_ladder(cluster("lab-3"), model("llama-3.1-8b"), TrafficProfile(1000, 230, tpot_s=0.19))


def test_the_adapter_uses_fewer_cards_than_the_top_and_loses_less_than_the_bottom(planned: PlannedLadder) -> None:
    ladder = planned.ladder
    service_s = ladder.service_s(ladder.lengths)
    # A quiet time, and one that is too much for the lowest level.
    rush = 1.2 * ladder.capacity(0, ladder.lengths)
    workload = Day("office_chat", (0.3, rush, 0.3), 600.0).sample(service_s, 1)
    run = serve_adapter(planned, workload, Adapter(ladder, window_s=180.0, dwell_s=300.0), CHOICE)
    levels = [change.level for change in run.changes]
    assert levels[0] == 0
    assert max(levels) > 0
    top = len(ladder.levels) - 1
    lowest, highest = serve_level(planned, 0, workload, CHOICE), serve_level(planned, top, workload, CHOICE)
    assert lowest.card_s < run.card_s < highest.card_s
    assert run.loss < lowest.loss
    assert run.columns.counts.sum() == workload.num_requests
    # The log can be replayed: the states say when each level was chosen.
    adapter = Adapter(ladder, window_s=180.0, dwell_s=300.0)
    states = [adapter.start()]
    for state in run.states[1:]:
        states.append(adapter.decide(states[-1], state.seen[-1]))
    assert states == list(run.states)


def test_on_one_level_the_adapter_is_that_level(planned: PlannedLadder) -> None:
    ladder = planned.ladder
    workload = Day("office_chat", (0.3,), 900.0).sample(ladder.service_s(ladder.lengths), 2)
    run = serve_adapter(planned, workload, Adapter(ladder), CHOICE)
    alone = serve_level(planned, 0, workload, CHOICE)
    assert [change.level for change in run.changes] == [0]
    assert run.card_s == pytest.approx(alone.card_s)
    assert run.loss == pytest.approx(alone.loss, abs=1e-9)


def test_levels_fit_by_themselves_and_loads_take_bytes_over_rate(planned: PlannedLadder) -> None:
    plan = level_plan(planned, 1e9)
    assert all(plan.fits(level) for level in plan.levels)
    most = max(plan.weight_bytes[plan.levels[0][0]].values())
    assert plan.load_ns(plan.levels[0][:1]) == pytest.approx(most, abs=1)
