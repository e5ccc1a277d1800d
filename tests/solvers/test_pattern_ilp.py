"""The planner over columns: contract, statuses, limits, real instances.

Small instances run the solver in this process (see ``model_jobs``); a few go through the process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from certify_instances import random_instance as tiny_instance
from model_jobs import run_here
from pattern_checks import SAME, agrees, is_verified
from slob_builders import SOLVED, Solved, one_gigabyte_short
from slob_contract import HAND, PlannerContract
from solver_instances import random_instance

from slob_opt.cost.build import build_table
from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.certify import certify
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, Planner, SolveLimits, SolveResult, Status
from slob_opt.planning.witness import (
    MemoryWitness,
    PatternWitness,
    SubsetWitness,
    ThresholdWitness,
)
from slob_opt.problem import catalogue
from slob_opt.problem.traffic import TrafficProfile
from solvers import pattern_interval, pattern_master
from solvers.backend import Ending
from solvers.child_process import ChildReport
from solvers.messages import ModelJob
from solvers.pattern_ilp import PatternIlpPlanner

pytest.importorskip("pulp", reason="PuLP is not installed: pip install 'slob[exact]'")
pytest.importorskip("highspy", reason="highspy is not installed: pip install 'slob[exact]'")


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve models in this process."""
    for module in (pattern_master, pattern_interval):
        monkeypatch.setattr(module, "run_in_child", run_here)


class Remembering:
    """Answers from memory what it was asked before, but every second time anew: the contract asks for repeats."""

    name = "pattern-ilp"

    def __init__(self) -> None:
        self._known: dict[object, SolveResult] = {}
        self._asked: dict[object, int] = {}

    def solve(
        self, instance: PlacementInstance, *, incumbent: object = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the planner's answer."""
        key = (instance.fingerprint, incumbent)
        self._asked[key] = self._asked.get(key, 0) + 1
        if key not in self._known or self._asked[key] == 2:
            self._known[key] = PatternIlpPlanner().solve(instance, incumbent=incumbent)  # type: ignore[arg-type]
        return self._known[key]


@cache
def remembering() -> Remembering:
    return Remembering()


@pytest.mark.usefixtures("no_process")
class TestPatternIlp(PlannerContract):
    path = "solvers.pattern_ilp:PatternIlpPlanner"

    @pytest.fixture
    def planner(self) -> Planner:
        return remembering()  # type: ignore[return-value]  # `incumbent` is typed more widely


@pytest.mark.parametrize("build", SOLVED, ids=lambda b: b.__name__)
def test_hand_solved_values(build: Callable[[], Solved], no_process: None) -> None:
    solved = build()
    result = PatternIlpPlanner().solve(solved.instance)
    if solved.objective is None:
        assert result.status is Status.INFEASIBLE
        assert certify(result, solved.instance).status is Status.INFEASIBLE
    elif solved.instance.table.has_identical_layers:
        assert result.status is Status.OPTIMAL
        assert result.objective == pytest.approx(solved.objective, rel=HAND)
    else:
        assert result.bound is not None
        assert result.bound <= solved.objective * (1 + HAND)


def test_memory_is_looked_at_before_any_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """47 GB for a model of 48 GB: no process is started, and the message says what is missing."""
    monkeypatch.setattr(pattern_interval, "run_in_child", lambda job: pytest.fail("a solver was started"))
    result = PatternIlpPlanner().solve(one_gigabyte_short().instance)
    assert result.status is Status.INFEASIBLE
    assert isinstance(result.witness, MemoryWitness)
    assert "GiB" in result.message


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("objective", [IntervalObjective(4), ThroughputObjective(2)])
def test_infeasible_beyond_memory_sums_is_proven(objective: IntervalObjective | ThroughputObjective) -> None:
    """Three cards of 15 bytes and layers of 10: enough bytes in all for four, but each card holds one."""
    table = direct_table([DirectClass("card", 3, 15, 1e-3)], 4, layer_bytes=10)
    instance = PlacementInstance(table, objective)
    result = PatternIlpPlanner().solve(instance)
    assert result.status is Status.INFEASIBLE
    assert result.message
    assert certify(result, instance).status is Status.INFEASIBLE


@pytest.mark.usefixtures("no_process")
def test_witnesses_by_route() -> None:
    uniform = random_instance(0, 6, 6, objective="throughput", is_uniform=True, is_identical=True)
    general = tiny_instance(0, is_throughput=True, has_pair_links=True)
    interval = tiny_instance(0, is_throughput=False)
    assert isinstance(PatternIlpPlanner().solve(uniform).witness, PatternWitness)
    assert isinstance(PatternIlpPlanner().solve(general).witness, SubsetWitness)
    assert PatternIlpPlanner().solve(interval).witness == ThresholdWitness("pattern")


def fourteen_cards() -> PlacementInstance:
    """Seven nodes of two cards with quick links inside: too many devices for subsets."""
    pairs = [[(1e9, 1e-5) if a // 2 == b // 2 else (1e7, 3e-3) for b in range(14)] for a in range(14)]
    table = direct_table(
        [DirectClass("a", 6, 250, 4e-3, 1e-3, 1e-3), DirectClass("b", 8, 420, 7e-3, 1e-3, 1e-3)], 6,
        layer_bytes=100, kv_bytes=5, batch_sizes=(1, 2), hop_bytes_per_token=2000, pair_links=pairs,
        nodes=[i // 2 for i in range(14)],
    )  # fmt: skip
    return PlacementInstance(table, ThroughputObjective(4, 0.2, 8))


def of_catalogue(cluster: str, objective: IntervalObjective | ThroughputObjective) -> PlacementInstance:
    """Llama-2-13B on a bundled cluster."""
    return PlacementInstance(
        build_table(catalogue.cluster(cluster), catalogue.model("llama-2-13b"), TrafficProfile()), objective
    )


@pytest.mark.parametrize(
    ("route", "instance"),
    [
        ("patterns", of_catalogue("lab-3", ThroughputObjective(4))),
        ("layer program", of_catalogue("lab-3", IntervalObjective(4))),
        ("subsets", of_catalogue("nvlink-pairs-2", ThroughputObjective(4))),
        ("blocks", fourteen_cards()),
    ],
)
def test_a_memory_limit_that_stops_the_solver_is_told_by_every_route(route: str, instance: PlacementInstance) -> None:
    result = PatternIlpPlanner().solve(instance, limits=SolveLimits(memory_bytes=2**20))
    assert dict(result.details)["route"] == route
    assert result.status in (Status.UNKNOWN, Status.FEASIBLE)
    assert dict(result.details)["met_memory_limit"] is True
    told = (
        "the memory limit of 1MiB is too small to start the solver in; raise it",
        "the solver reached its memory limit of 1MiB; raise it",
    )
    assert result.message.startswith(told), result.message


@pytest.mark.usefixtures("no_process")
def test_fourteen_cards_in_nodes_are_solved_by_blocks() -> None:
    instance = fourteen_cards()
    result = PatternIlpPlanner().solve(instance)
    assert dict(result.details)["route"] == "blocks"
    assert result.status is Status.OPTIMAL
    assert result.placement is not None
    assert evaluate(instance, result.placement).violations == ()
    relaxed = ParametricPlanner().solve(instance)
    assert relaxed.bound is not None
    assert result.bound is not None
    assert result.bound >= relaxed.bound * (1 + SAME)  # counts with the quickest hops are looser, or equal
    certificate = certify(result, instance)
    assert certificate.is_valid
    assert certificate.bound_status in ("claimed", "verified")


def test_a_limit_without_a_plan_is_unknown_or_keeps_the_incumbent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that never answers: no plan is invented, the incumbent stays, and nothing is called optimal."""
    instance = random_instance(1, 7, 8, objective="throughput", is_uniform=True, is_identical=True)
    silent = ChildReport(was_killed=True)
    monkeypatch.setattr(pattern_master, "run_in_child", lambda job: silent)
    result = PatternIlpPlanner().solve(instance, limits=SolveLimits(time_s=20))
    assert (result.status, result.placement) == (Status.UNKNOWN, None)
    assert result.bound is not None  # the prices alone prove it
    is_sound = certify(result, instance)
    assert is_sound.bound_status == "verified"
    best = ParametricPlanner().solve(instance)
    kept = PatternIlpPlanner().solve(instance, incumbent=best.placement, limits=SolveLimits(time_s=20))
    assert kept.objective == best.objective
    assert kept.status in (Status.FEASIBLE, Status.OPTIMAL)
    assert (kept.status is Status.OPTIMAL) == (kept.gap is not None and kept.gap <= OPTIMALITY_TOLERANCE)


def test_a_plan_found_before_the_limit_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is ended after it streamed a solution: that plan is the answer, and its bound comes from prices."""

    def killed(job: ModelJob) -> ChildReport:
        report = run_here(job)
        report.answers, report.bounds, report.finished, report.was_killed = [], [], None, True
        return report

    monkeypatch.setattr(pattern_master, "run_in_child", killed)
    instance = random_instance(1, 7, 8, objective="throughput", is_uniform=True, is_identical=True)
    result = PatternIlpPlanner().solve(instance)
    assert result.placement is not None
    assert result.bound is not None
    assert result.objective is not None
    assert result.bound <= result.objective
    assert dict(result.details).get("ending") is None
    assert killed(_trivial_job()).ending is Ending.LIMIT


def _trivial_job() -> ModelJob:
    from solvers.backend import BackendLimits
    from solvers.integer_model import IntegerModel
    from solvers.messages import Backend

    model = IntegerModel("trivial")
    model.add_row("row", {model.add_bool("x"): 1}, upper=1)
    model.objective[0] = -1.0
    return ModelJob(pattern_master.OneModel(model), Backend.HIGHS, BackendLimits(5.0))


@pytest.mark.parametrize("objective", ["interval", "throughput"])
def test_no_time_at_all(objective: str) -> None:
    instance = random_instance(2, 8, 9, objective=objective, is_uniform=True, is_identical=True)
    result = PatternIlpPlanner().solve(instance, limits=SolveLimits(time_s=1e-9))
    assert result.status in (Status.UNKNOWN, Status.FEASIBLE, Status.OPTIMAL)
    best = ParametricPlanner().solve(instance).objective
    assert best is not None
    assert result.bound is not None  # at least the closed form's
    assert result.bound <= best + SAME * abs(best)
    assert certify(result, instance).is_valid


@pytest.mark.usefixtures("no_process")
def test_two_limits_that_both_prove_agree() -> None:
    instance = random_instance(6, 10, 9, objective="throughput", is_uniform=True, is_identical=True)
    values = [PatternIlpPlanner().solve(instance, limits=SolveLimits(time_s=t)) for t in (5.0, 60.0)]
    proven = [v.objective for v in values if v.status is Status.OPTIMAL]
    assert len(proven) == 2
    assert proven[0] == pytest.approx(proven[1], rel=1e-6)


@pytest.mark.usefixtures("no_process")
def test_history_only_gets_better() -> None:
    instance = random_instance(8, 12, 10, objective="throughput", is_uniform=True, is_identical=True)
    history = PatternIlpPlanner().solve(instance).history
    bounds = [p.bound for p in history if p.bound is not None]
    plans = [p.objective for p in history if p.objective is not None]
    assert bounds == sorted(bounds)
    assert plans == sorted(plans, reverse=True)
    assert [p.elapsed_s for p in history] == sorted(p.elapsed_s for p in history)


@pytest.mark.slow
def test_24_cards_with_a_70b_model_are_proven_and_verified() -> None:
    """4 A100, 8 L4, 12 T4 and Llama-2-70B: other tools end with gaps of over 2000 % here. Process of its own."""
    table = build_table(catalogue.cluster("helix-single24"), catalogue.model("llama-2-70b"), TrafficProfile())
    instance = PlacementInstance(table, ThroughputObjective(16, 0.4, 64))
    result = PatternIlpPlanner().solve(instance, limits=SolveLimits(time_s=120))
    assert result.status is Status.OPTIMAL
    is_verified(result, instance)
    assert result.objective == pytest.approx(ParametricPlanner().solve(instance).objective, rel=1e-6)
    interval = PlacementInstance(table, IntervalObjective(8))
    found = PatternIlpPlanner().solve(interval)
    agrees(found, ParametricPlanner().solve(interval))
    is_verified(found, interval)


@pytest.mark.slow
def test_nodes_of_four_cards_with_groups_of_two_and_four() -> None:
    """Two nodes of four cards with tensor-parallel groups, 14 planning devices: blocks, against counts as a bound."""
    table = build_table(catalogue.cluster("llmpq-7"), catalogue.model("llama-2-70b"), TrafficProfile())
    assert table.num_devices == 14
    instance = PlacementInstance(table, ThroughputObjective(16, 0.4, 64))
    result = PatternIlpPlanner().solve(instance)
    assert result.status is Status.OPTIMAL
    assert dict(result.details)["route"] == "blocks"
    relaxed = ParametricPlanner().solve(instance, incumbent=result.placement)
    assert relaxed.objective is not None
    assert relaxed.bound is not None
    assert result.bound is not None
    assert relaxed.bound * (1 + SAME) <= result.bound
    assert np.isfinite(result.bound)
