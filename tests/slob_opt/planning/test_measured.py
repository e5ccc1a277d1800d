"""Planners and simulator on clusters of measured, emulated cards."""

from __future__ import annotations

import pytest
from measured_profiles import measured_cluster, small_model

from slob_opt.cost.batch import BatchShape
from slob_opt.cost.build import build_table
from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.planning.baselines.speed_chain import SpeedChainPlanner
from slob_opt.planning.certify import certify
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective
from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.result import Planner
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.traffic import TrafficProfile
from slob_opt.slob.placement import SlobPlanner

MODEL = small_model()
TRAFFIC = TrafficProfile(prompt_tokens=64, output_tokens=32)


def instance(cluster: Cluster, objective: Objective) -> PlacementInstance:
    return PlacementInstance(build_table(cluster, MODEL, TRAFFIC), objective, "measured")


@pytest.mark.parametrize("objective", [IntervalObjective(1), IntervalObjective(3), ThroughputObjective(4)])
@pytest.mark.parametrize("planner", [SlobPlanner(), ParametricPlanner(), SpeedChainPlanner()], ids=lambda p: p.name)
def test_plans_of_measured_cards_are_certified(planner: Planner, objective: Objective) -> None:
    cluster = measured_cluster(MODEL, (1.0, 3.0, 1.5), 4 * 2**20)
    posed = instance(cluster, objective)
    certificate = certify(planner.solve(posed), posed, rebuild=lambda: build_table(cluster, MODEL, TRAFFIC))
    assert certificate.is_valid, certificate


def test_a_slower_card_gets_fewer_layers_and_the_plan_tells_the_clocks_time() -> None:
    """Three in flight: the card with three times the layer time holds fewer layers; one alone needs one card."""
    cluster = measured_cluster(MODEL, (1.0, 3.0))
    plan = ParametricPlanner().solve(instance(cluster, IntervalObjective(3))).placement
    assert plan is not None
    (pipeline,) = plan.pipelines
    layers = {cluster.devices[s.cards[0]].name: s.end - s.first for s in pipeline.stages}
    assert layers.get("box/1", 0) < layers["box/0"]
    clock = PipelineClock.of(cluster, MODEL, pipeline)
    context = 64 + 16
    one = clock.times(clock.stages[0].work_of(BatchShape.ragged((context,))))
    alone = instance(cluster, IntervalObjective(1))
    table_s = sum(
        alone.table.fixed_s[0, c] + alone.table.layer_s[0, c, s.first : s.end].sum()
        + (alone.table.embed_s[0, c] if s.first == 0 else 0)
        + (alone.table.head_s[0, c] if s.end == MODEL.num_layers else 0)
        for s in pipeline.stages
        for c in (alone.table.device_class[s.cards[0]],)
    )  # fmt: skip
    assert sum(one.stage_ns) / 1e9 == pytest.approx(table_s, rel=1e-4)
