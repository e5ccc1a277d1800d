"""Layer maps, left-out devices and their reasons, curves and drawings: the data first, then one drawing each."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.gap_curves import FIRST_MOMENT_S, gap_curve, gap_curves
from experiments.layer_map import colour, layer_map, left_out_devices
from experiments.left_out import explain_left_out, summarise
from experiments.plots import draw_gap_curves, draw_layer_map, left_out_text, save
from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.result import HistoryPoint, SolveResult, Status
from slob_opt.planning.split import pipeline_of
from slob_opt.problem.placement import Placement


def office(slow_s: float = 4e-3, slow_bytes: int = 400) -> PlacementInstance:
    """Two fast devices that hold eight layers together, and two slow ones; a hop takes 1 ms."""
    classes = [DirectClass("fast", 2, 500, 1e-3), DirectClass("slow", 2, slow_bytes, slow_s)]
    table = direct_table(classes, 8, layer_bytes=100, latency_s=1e-3, hop_bytes_per_token=1)
    return PlacementInstance(table, IntervalObjective(1))


def fast_plan(instance: PlacementInstance) -> Placement:
    return Placement((pipeline_of(instance.table, (0, 1), (5, 3)),))


def test_a_layer_map_says_who_holds_what() -> None:
    instance = office()
    layers = layer_map(instance.table, fast_plan(instance), evaluate(instance, fast_plan(instance)))
    (row,) = layers.rows
    assert [(b.device, b.first, b.end) for b in row.blocks] == [("fast-0", 0, 5), ("fast-1", 5, 8)]
    assert [b.is_bottleneck for b in row.blocks] == [True, False]
    assert [b.memory_use for b in row.blocks] == [1.0, 0.6]
    assert layers.min_headroom_bytes == 0
    assert layers.class_counts == ((2, 2), (0, 2))
    assert layers.left_out == (("slow-0", 1), ("slow-1", 1))
    assert left_out_text(layers) == "left out: 2 × slow (slow-0, slow-1)"


def test_a_card_of_a_group_that_works_is_not_left_out() -> None:
    """Devices 0 and 1 are cards, device 2 is both of them as one group."""
    table = direct_table([DirectClass("a", 3, 1000, 1e-3)], 4, layer_bytes=10)
    object.__setattr__(table, "device_cards", ((0,), (1,), (0, 1)))
    assert left_out_devices(table, Placement((pipeline_of(table, (2,), (4,)),))) == ()
    assert left_out_devices(table, Placement((pipeline_of(table, (0,), (4,)),))) == (1,)


def test_a_slow_device_is_left_out_because_it_would_slow_the_plan_down() -> None:
    """8 ms of layers + 2 hops of 1 ms; with one layer on a slow device 7 + 4 + 3 hops = 14 ms, up from 10: +40 %."""
    instance = office()
    reasons = explain_left_out(instance, fast_plan(instance))
    assert [item.device for item in reasons] == ["slow-0", "slow-1"]
    assert "would slow the plan down" in reasons[0].reason
    assert "1 layer of pipeline 0" in reasons[0].reason
    assert "14 ms instead of 10 ms (+40.0%)" in reasons[0].reason
    assert len(summarise(reasons)) == 1


def test_a_small_device_is_left_out_because_it_holds_no_layer() -> None:
    reasons = explain_left_out(office(slow_bytes=50), fast_plan(office(slow_bytes=50)))
    assert "can't hold one layer" in reasons[0].reason


def test_a_useful_device_is_told_as_overlooked() -> None:
    """Devices four times as fast as those at work."""
    instance = office(slow_s=0.25e-3)
    assert "overlooked by this method" in explain_left_out(instance, fast_plan(instance))[0].reason


def test_every_layer_may_have_its_device_already() -> None:
    """Five cards, three layers: at most three stages, the others are named with the reason."""
    table = direct_table([DirectClass("a", 5, 100, 1e-3)], 3, layer_bytes=100)
    instance = PlacementInstance(table, IntervalObjective(1))
    reasons = explain_left_out(instance, Placement((pipeline_of(table, (0, 1, 2), (1, 1, 1)),)))
    assert [item.device for item in reasons] == ["a-3", "a-4"]
    assert "every layer has a device of its own" in reasons[0].reason


def test_throughput_tells_whether_the_rest_makes_a_pipeline() -> None:
    table = direct_table([DirectClass("a", 5, 400, 1e-3)], 8, layer_bytes=100, batch_sizes=(1, 2))
    instance = PlacementInstance(table, ThroughputObjective(2))
    one = Placement((pipeline_of(table, (0, 1), (4, 4), 2, 1),))
    assert "would make about" in explain_left_out(instance, one)[0].reason
    two = Placement((*one.pipelines, pipeline_of(table, (2, 3), (4, 4), 2, 1)))
    assert "at most 4 of 8 layers, too few" in explain_left_out(instance, two)[0].reason


def result(history: tuple[HistoryPoint, ...]) -> SolveResult:
    return SolveResult("m", Status.FEASIBLE, None, -10.0, -12.0, 4.0, history=history)


def test_curves_are_steps_in_natural_scale() -> None:
    points = (HistoryPoint(0.0, None, -20.0), HistoryPoint(1.0, -8.0, -20.0), HistoryPoint(2.0, -8.0, -15.0))
    curve = gap_curve(result(points), is_throughput=True)
    assert curve.incumbent == ((1.0, 8.0), (4.0, 10.0))
    assert curve.bound == ((FIRST_MOMENT_S, 20.0), (2.0, 15.0), (4.0, 12.0))


def test_a_method_without_anything_has_no_curve() -> None:
    nothing = SolveResult("n", Status.UNKNOWN, None, None, None, 1.0)
    assert [curve.method for curve in gap_curves([nothing, result(())], is_throughput=False)] == ["m"]


def test_colours_differ_for_ten_classes() -> None:
    assert len({colour(c) for c in range(10)}) == 10
    assert colour(10) == colour(0)


def test_pictures_are_drawn_and_repeat(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    instance = office()
    layers = layer_map(instance.table, fast_plan(instance), evaluate(instance, fast_plan(instance)))
    first = save(draw_layer_map([("slob", layers)], "office"), tmp_path / "a", "layers")
    again = save(draw_layer_map([("slob", layers)], "office"), tmp_path / "b", "layers")
    curves = save(draw_gap_curves([gap_curve(result(()), is_throughput=True)], "office", "tokens/s"), tmp_path, "gap")
    assert [path.suffix for path in (*first, *curves)] == [".png", ".svg"] * 2
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    text = first[1].read_text(encoding="utf-8")
    assert "fast-0" in text
    assert "left out: 2 × slow" in text
    assert save(draw_gap_curves([], "nothing", "s"), tmp_path, "empty")[0].stat().st_size > 0
