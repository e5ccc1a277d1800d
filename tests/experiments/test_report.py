"""What a report says of plans, and what a run keeps of an outcome: KV room, closed metric names, reproducibility."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from experiments.comparison import Comparison, compare
from experiments.layer_map import layer_map
from experiments.problem_setup import ProblemOptions, ProblemSetup, set_up
from experiments.report import is_reproducible, outcome_json, outcome_record, pipelines_json
from experiments.run_record import MAX_METRICS, METRIC_NAMES
from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective
from slob_opt.planning.result import HistoryPoint, SolveLimits, SolveResult, Status
from slob_opt.planning.split import pipeline_of
from slob_opt.problem import catalogue
from slob_opt.problem.catalogue import gpu_device
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Link
from slob_opt.problem.placement import Placement

GIB = 2**30


def of_cards(count: int) -> ProblemSetup:
    """The problem of `count` equal machines with a link each to all others."""
    base = set_up(ProblemOptions("lab-3", "llama-2-7b", objective="latency"))
    nodes = tuple(Node(f"n{i}", (gpu_device("rtx-4090", f"n{i}/0"),)) for i in range(count))
    cluster = Cluster("many", nodes, Link(1.25e9, 1e-4), Link(1.25e9, 1e-4))
    setup = replace(base, cluster=cluster)
    return replace(setup, instance=replace(base.instance, table=setup.rebuild()))


def spread_over(setup: ProblemSetup, count: int) -> Comparison:
    """A comparison whose only plan gives each of the first `count` cards a stage; other cards are left out."""
    shares = [setup.table.num_layers // count] * count
    shares[0] += setup.table.num_layers - sum(shares)
    made = compare(setup, ("even",), SolveLimits())
    plan = Placement((pipeline_of(setup.table, tuple(range(count)), tuple(shares)),))
    found = evaluate(setup.instance, plan)
    outcome = replace(
        made.outcomes[0],
        result=replace(made.outcomes[0].result, placement=plan, objective=found.objective),
        evaluation=found,
        layers=layer_map(setup.table, plan, found),
    )
    return replace(made, outcomes=(outcome,))


def test_kv_room_is_told_by_stage_with_its_spread() -> None:
    """Case P14: ten layers beside 28 GiB on seven cards, eight beside 6 GiB on the last; 1,152 bytes a token and layer.

    A sequence is 1,024 tokens: 28 * 2^20 // (10 * 1152) and 6 * 2^20 // (8 * 1152) of them; the rest is room that can't
    be used.
    """
    cards = [DirectClass("roomy", 7, 38 * GIB, 1e-3), DirectClass("full", 1, 14 * GIB, 1e-3)]
    table = direct_table(cards, 78, layer_bytes=GIB, kv_bytes=1152 * 1024)
    plan = Placement((pipeline_of(table, range(8), (*[10] * 7, 8), 4),))
    found = evaluate(PlacementInstance(table, IntervalObjective(4)), plan)
    (row,) = pipelines_json(layer_map(table, plan, found), found, 1024)
    roomy, full = 28 * 2**20 // (10 * 1152), 6 * 2**20 // (8 * 1152)
    stages = row["stages"]
    assert isinstance(stages, list)
    assert [stage["kv_tokens"] for stage in stages] == [roomy * 1024] * 7 + [full * 1024]
    assert row["kv_tokens"] == full * 1024
    assert row["kv_spread"] == pytest.approx(roomy / full)


def test_kv_room_of_a_whole_report_holds_what_is_in_flight() -> None:
    setup = set_up(ProblemOptions("lab-3", "llama-2-7b", context_tokens=2048))
    comparison = compare(setup, ("slob",), SolveLimits())
    told = outcome_json(comparison, comparison.outcomes[0])["pipelines"]
    assert isinstance(told, list)
    for pipeline in told:
        in_flight = pipeline["num_micro_batches"] * pipeline["batch_size"] * 2048
        assert in_flight <= pipeline["kv_tokens"] == min(stage["kv_tokens"] for stage in pipeline["stages"])
        assert pipeline["kv_tokens"] % 2048 == 0
        assert pipeline["kv_spread"] >= 1


def test_kv_room_without_kv_or_without_room_is_no_number() -> None:
    """Without KV nothing limits it; on an over-full card no sequence fits and a ratio would be infinite."""
    for kv_bytes, per_card in ((0, 500), (10, 400)):
        table = direct_table([DirectClass("a", 2, per_card, 1e-3)], 10, layer_bytes=100, kv_bytes=kv_bytes)
        plan = Placement((pipeline_of(table, (0, 1), (5, 5)),))
        found = evaluate(PlacementInstance(table, IntervalObjective(1)), plan)
        (row,) = pipelines_json(layer_map(table, plan, found), found, 16)
        assert row["kv_spread"] is None
        assert row["kv_tokens"] == (None if not kv_bytes else 0)


def test_many_devices_make_rows_and_no_metrics() -> None:
    """Case M06: the run of a plan over 32 of 64 cards has the metrics of a plan over two, from the closed list."""
    setup = of_cards(64)
    records = {}
    for used in (2, 32):
        comparison = spread_over(setup, used)
        records[used] = outcome_record(comparison, comparison.outcomes[0], ())
        names = {name for name, _ in records[used].metrics}
        assert names <= METRIC_NAMES
        assert not any(stage in name for name in names for stage in ("n0", "n31"))
        (stages,) = (table for table in records[used].tables if table.path == "stages.csv")
        rows = list(csv.DictReader(io.StringIO(stages.as_csv())))
        assert [row["device"] for row in rows] == [f"n{i}/0" for i in range(used)]
        assert sum(int(row["end"]) - int(row["first"]) for row in rows) == setup.table.num_layers
    assert [name for name, _ in records[2].metrics] == [name for name, _ in records[32].metrics]
    assert dict(records[32].metrics)["num_devices_left_out"] == 32


def test_a_long_search_keeps_all_its_points_in_one_table_and_few_in_the_store() -> None:
    """Case M05: 50,000 improvements are rows of one CSV file; the store gets 200 points at most."""
    comparison = spread_over(of_cards(4), 2)
    (outcome,) = comparison.outcomes
    history = tuple(HistoryPoint(i * 1e-3, 2.0 + 1 / (i + 1), 1.0) for i in range(50_000))
    outcome = replace(outcome, result=replace(outcome.result, history=history))
    record = outcome_record(comparison, outcome, ())
    assert len(record.metrics) + sum(len(series.points) for series in record.thin_series()) <= MAX_METRICS
    (table,) = (t for t in record.tables if t.path == "history.csv")
    assert len(table.rows) == 50_000
    assert len(table.as_csv().splitlines()) == 50_001


@pytest.mark.parametrize(
    ("limits", "status", "elapsed_s", "is_same_again"),
    [
        (SolveLimits(60.0, seed=7), Status.OPTIMAL, 3.0, True),
        (SolveLimits(60.0, seed=7), Status.OPTIMAL, 59.9, True),  # proven, however late
        (SolveLimits(60.0, seed=7), Status.FEASIBLE, 3.0, True),
        (SolveLimits(60.0, seed=7), Status.FEASIBLE, 60.1, False),  # where the clock cut it, another plan may stand
        (SolveLimits(None, seed=7), Status.FEASIBLE, 1e4, True),
        (SolveLimits(60.0, seed=7, workers=8), Status.OPTIMAL, 3.0, False),
    ],
)
def test_runs_that_may_differ_next_time_carry_a_tag(
    limits: SolveLimits, status: Status, elapsed_s: float, is_same_again: bool
) -> None:
    """Case O15: what makes a run repeatable is recorded, and whether it is."""
    comparison = spread_over(of_cards(4), 2)
    (outcome,) = comparison.outcomes
    result = replace(outcome.result, limits=limits, status=status, elapsed_s=elapsed_s)
    assert is_reproducible(result) is is_same_again
    record = outcome_record(comparison, replace(outcome, result=result), ())
    assert dict(record.tags)["reproducible"] == ("yes" if is_same_again else "no")
    params = dict(record.params)
    assert (params["seed"], params["workers"]) == ("7", str(limits.workers))
    assert params["time_s"] == str(limits.time_s)


def test_a_solvers_version_and_seed_are_recorded() -> None:
    """Case O15, with CP-SAT itself."""
    pytest.importorskip("ortools", reason="pip install 'slob[exact]'")
    setup = of_cards(2)
    comparison = compare(setup, ("cpsat",), SolveLimits(60.0, seed=42))
    record = outcome_record(comparison, comparison.outcomes[0], ())
    params = dict(record.params)
    assert params["seed"] == "42"
    assert params["details.solver_version"].count(".") >= 2
    assert params["details.reproducible"] == "True"
    assert dict(record.tags)["reproducible"] == "yes"


def test_the_way_kv_is_counted_is_named() -> None:
    """Case G07: gemma-2's windowed layers; the report of the problem says which mode its figures are of."""
    needs = {}
    for mode in ("safe", "tight"):
        setup = set_up(ProblemOptions("lab-3", "gemma-2-2b", context_tokens=8192, kv_mode=mode))
        comparison = Comparison(setup, (), (), None, False, ())
        cost = comparison.setup.effective()["cost"]
        assert isinstance(cost, dict)
        assert cost["kv_mode"] == mode
        needs[mode] = int(setup.table.kv_bytes[0].sum())
    layers = catalogue.model("gemma-2-2b").layers
    tokens = {mode: sum(8192 if mode == "safe" else min(8192, layer.window_tokens or 8192) for layer in layers)
              for mode in needs}  # fmt: skip
    assert needs["safe"] * tokens["tight"] == needs["tight"] * tokens["safe"]
    assert needs["tight"] < needs["safe"]


def test_an_outcome_without_a_plan_has_no_pipelines() -> None:
    setup = set_up(ProblemOptions("lab-3", "llama-2-70b"))
    comparison = compare(setup, ("even",), SolveLimits())
    told = outcome_json(comparison, comparison.outcomes[0])
    assert told["pipelines"] == []
    assert told["objective"] is None
    assert isinstance(comparison.outcomes[0].result, SolveResult)
