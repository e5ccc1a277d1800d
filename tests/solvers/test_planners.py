"""The planners from outside: statuses, incumbents, refusals, repeatability, reported cases."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from slob_builders import fast_and_slow, one_gigabyte_short
from solver_instances import random_instance

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.errors import InputError
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.result import SolveLimits, SolveResult, Status
from slob_opt.planning.witness import MemoryWitness
from slob_opt.problem.placement import Pipeline, Placement, Stage
from solvers import planners
from solvers.backend import Ending
from solvers.child_process import ChildReport
from solvers.messages import OUT_OF_MEMORY, Finished, Job
from solvers.planners import CpSatPlanner, IlpPlanner

PLANNERS = [IlpPlanner(), CpSatPlanner(deterministic_s=30.0)]
WHOLE_ON_FAST = Placement((Pipeline((Stage((0,), 0, 32),), 1, 1),))
WHOLE_ON_SLOW = Placement((Pipeline((Stage((1,), 0, 32),), 1, 1),))


def ids(planner: object) -> str:
    return str(getattr(planner, "name", planner))


def plain(result: SolveResult) -> SolveResult:
    """Without what a clock wrote."""
    kept = tuple(d for d in result.details if not d[0].endswith("_s"))
    return replace(result, elapsed_s=0.0, history=(), details=kept)


@pytest.fixture
def needs_solvers() -> None:
    pytest.importorskip("ortools", reason="pip install 'slob[exact]'")
    pytest.importorskip("highspy", reason="pip install 'slob[exact]'")


@dataclass
class FakeRuns:
    """Answers instead of processes; keeps the jobs it was asked."""

    answer: Callable[[Job], ChildReport]
    jobs: list[Job]

    def __call__(self, job: Job) -> ChildReport:
        self.jobs.append(job)
        return self.answer(job)


def fake(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Job], ChildReport]) -> FakeRuns:
    runs = FakeRuns(answer, [])
    monkeypatch.setattr(planners, "run_in_child", runs)
    return runs


@pytest.mark.usefixtures("needs_solvers")
@pytest.mark.parametrize("planner", PLANNERS, ids=ids)
def test_proves_a_hand_solved_instance_and_tells_its_times(planner: IlpPlanner | CpSatPlanner) -> None:
    """P02: all 32 layers on the fast card, 16 ms; the slow one left out."""
    result = planner.solve(fast_and_slow().instance)
    assert result.status is Status.OPTIMAL
    assert result.placement == WHOLE_ON_FAST
    assert result.objective == pytest.approx(0.016, rel=1e-5)
    details = dict(result.details)
    assert {"start_s", "build_s", "solve_s", "variables", "solver_version", "tick_s"} <= details.keys()
    assert details["reproducible"] is True
    assert result.history[-1].objective == result.objective


@pytest.mark.usefixtures("needs_solvers")
@pytest.mark.parametrize("planner", PLANNERS, ids=ids)
def test_equal_calls_give_equal_results(planner: IlpPlanner | CpSatPlanner) -> None:
    """O15, O16."""
    instance = random_instance(4, 3, 4, objective="throughput", is_uniform=False, is_identical=True)
    assert plain(planner.solve(instance)) == plain(planner.solve(instance))


@pytest.mark.usefixtures("needs_solvers")
@pytest.mark.parametrize("planner", PLANNERS, ids=ids)
def test_two_limits_that_both_prove_agree(planner: IlpPlanner | CpSatPlanner) -> None:
    """O03."""
    instance = random_instance(9, 4, 6, objective="interval", is_uniform=False, is_identical=True)
    short, long = (planner.solve(instance, limits=SolveLimits(time_s=t)) for t in (10.0, 60.0))
    assert short.status is long.status is Status.OPTIMAL
    assert short.objective == pytest.approx(long.objective, rel=1e-6)


@pytest.mark.parametrize("planner", PLANNERS, ids=ids)
def test_too_little_memory_is_found_before_any_solver_runs(
    planner: IlpPlanner | CpSatPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O09: cards of 24 and 23 GB, a model of 48 GB."""
    runs = fake(monkeypatch, lambda job: pytest.fail("a solver was started"))
    result = planner.solve(one_gigabyte_short().instance)
    assert result.status is Status.INFEASIBLE
    assert isinstance(result.witness, MemoryWitness)
    assert (result.witness.need_bytes, result.witness.have_bytes) == (48 * 10**9, 47 * 10**9)
    assert result.message
    assert not runs.jobs


@pytest.mark.parametrize("planner", PLANNERS, ids=ids)
def test_limit_without_a_plan(planner: IlpPlanner | CpSatPlanner, monkeypatch: pytest.MonkeyPatch) -> None:
    """O04: no plan of its own: none without an incumbent, the incumbent labelled HEURISTIC with one."""
    fake(monkeypatch, lambda job: ChildReport(finished=Finished(Ending.LIMIT, "TimeLimit")))
    instance = fast_and_slow().instance
    empty = planner.solve(instance)
    assert (empty.status, empty.placement, empty.objective) == (Status.UNKNOWN, None, None)
    kept = planner.solve(instance, incumbent=WHOLE_ON_SLOW)
    assert kept.status is Status.FEASIBLE
    assert kept.placement == WHOLE_ON_SLOW
    assert dict(kept.details)["plan_by"] == "HEURISTIC"


@pytest.mark.parametrize("planner", PLANNERS, ids=ids)
def test_killed_run_keeps_its_best_plan_and_bound(
    planner: IlpPlanner | CpSatPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O17, O20, O23: FEASIBLE, with the gap of the plan's own worth to the last bound."""
    report = ChildReport(
        plans=[(0.1, WHOLE_ON_SLOW), (0.2, WHOLE_ON_FAST)], bounds=[(0.1, 0.001), (0.3, 0.0159999)], was_killed=True
    )
    fake(monkeypatch, lambda job: report)
    monkeypatch.setattr(planners, "closed_form_bound", lambda instance: None)
    result = planner.solve(fast_and_slow().instance)
    assert result.status is Status.FEASIBLE
    assert result.placement == WHOLE_ON_FAST
    assert result.bound == pytest.approx(0.0159999, rel=1e-6)
    assert result.message == "stopped by a limit"
    bounds = [point.bound for point in result.history if point.bound is not None]
    worths = [point.objective for point in result.history if point.objective is not None]
    assert bounds == sorted(bounds)
    assert worths == sorted(worths, reverse=True)


@pytest.mark.parametrize("planner", PLANNERS, ids=ids)
def test_solver_that_says_optimal_with_a_gap_is_not_believed(
    planner: IlpPlanner | CpSatPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O02: the status is our own gap; a bound above a plan's worth is refuted and dropped."""
    slow = evaluate(fast_and_slow().instance, WHOLE_ON_SLOW).objective
    assert slow is not None
    monkeypatch.setattr(planners, "closed_form_bound", lambda instance: None)
    for bound, status in ((slow * 0.9, Status.FEASIBLE), (slow * 1.1, Status.FEASIBLE)):
        report = ChildReport([(0.1, WHOLE_ON_SLOW)], [(0.2, bound)], Finished(Ending.FINISHED, "OPTIMAL"))
        fake(monkeypatch, lambda job, report=report: report)  # type: ignore[misc]  # binds the loop's report
        result = planner.solve(fast_and_slow().instance)
        assert result.status is status
        assert ("bound_refuted" in dict(result.details)) == (bound > slow)


@pytest.mark.parametrize("planner", PLANNERS, ids=ids)
def test_infeasible_is_told_only_when_confirmed(
    planner: IlpPlanner | CpSatPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O06, O11: a second back end confirms or refutes; an allowed incumbent refutes at once, presolve is then off."""
    instance = fast_and_slow().instance
    infeasible = ChildReport(finished=Finished(Ending.INFEASIBLE, "Infeasible"))
    runs = fake(monkeypatch, lambda job: infeasible)
    both = planner.solve(instance)
    assert both.status is Status.INFEASIBLE
    assert len({job.backend for job in runs.jobs}) == 2
    first = runs.jobs[0].backend

    unsure = ChildReport(finished=Finished(Ending.LIMIT, "TimeLimit"))
    fake(monkeypatch, lambda job: infeasible if job.backend is first else unsure)
    assert planner.solve(instance).status is Status.UNKNOWN

    found = ChildReport([(0.1, WHOLE_ON_FAST)], [], Finished(Ending.FINISHED, "Optimal"))
    fake(monkeypatch, lambda job: infeasible if job.backend is first else found)
    refuted = planner.solve(instance)
    assert refuted.placement == WHOLE_ON_FAST
    assert "infeasible_refuted_by" in dict(refuted.details)

    runs = fake(monkeypatch, lambda job: infeasible)
    with_plan = planner.solve(instance, incumbent=WHOLE_ON_SLOW)
    assert with_plan.placement == WHOLE_ON_SLOW
    assert [job.limits.has_presolve for job in runs.jobs] == [True, False]


@pytest.mark.usefixtures("needs_solvers")
@pytest.mark.parametrize("planner", PLANNERS, ids=ids)
def test_infeasible_by_a_time_cap_is_confirmed_by_the_other_back_end(planner: IlpPlanner | CpSatPlanner) -> None:
    """Four layers of 10 ms on two cards can't make an interval of 5 ms, whatever K."""
    table = direct_table([DirectClass("a", 2, 99, 0.01)], 4, layer_bytes=10)
    result = planner.solve(PlacementInstance(table, ThroughputObjective(2, max_interval_s=0.005)))
    assert result.status is Status.INFEASIBLE
    assert "infeasible_confirmed_by" in dict(result.details)


@pytest.mark.parametrize("planner", PLANNERS, ids=ids)
def test_too_large_a_model_is_refused_and_the_incumbent_kept(
    planner: IlpPlanner | CpSatPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O18: nothing is built; the message says the size and advises grouping."""
    fake(monkeypatch, lambda job: pytest.fail("a solver was started"))
    result = planner.solve(fast_and_slow().instance, incumbent=WHOLE_ON_SLOW, limits=SolveLimits(memory_bytes=10_000))
    assert result.status is Status.FEASIBLE
    assert result.placement == WHOLE_ON_SLOW
    assert "group equal GPUs" in result.message
    assert dict(result.details)["met_memory_limit"] is True


@pytest.mark.parametrize("planner", PLANNERS, ids=ids)
def test_a_run_that_met_its_memory_limit_says_so(
    planner: IlpPlanner | CpSatPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = Finished(Ending.LIMIT, OUT_OF_MEMORY, "the solver reached its memory limit of 1GiB; raise it")
    fake(monkeypatch, lambda job: ChildReport(finished=finished))
    result = planner.solve(fast_and_slow().instance, limits=SolveLimits(memory_bytes=2**30))
    assert result.message == finished.reason
    assert dict(result.details)["met_memory_limit"] is True


@pytest.mark.usefixtures("needs_solvers")
@pytest.mark.parametrize("planner", PLANNERS, ids=ids)
def test_never_worse_than_its_incumbent_and_never_optimal_when_stopped_at_once(
    planner: IlpPlanner | CpSatPlanner,
) -> None:
    """O02, O05: 10 devices with a link each; stopped long before a proof, the incumbent's worth is the floor."""
    table = random_instance(5, 10, 24, objective="throughput", is_uniform=False, is_identical=True).table
    instance = PlacementInstance(
        replace(table, capacity_bytes=table.capacity_bytes * 4), ThroughputObjective(8), "ten devices"
    )
    incumbent = Placement(tuple(Pipeline((Stage((d,), 0, 24),), 1, 1) for d in range(10)))
    worth = evaluate(instance, incumbent).objective
    assert worth is not None
    result = planner.solve(instance, incumbent=incumbent, limits=SolveLimits(time_s=3.0))
    assert result.status is Status.FEASIBLE
    assert result.objective is not None
    assert result.objective <= worth
    assert result.bound is not None
    assert result.bound < result.objective


@pytest.mark.usefixtures("needs_solvers")
@pytest.mark.parametrize("in_flight", [1, 4])
def test_one_more_device_never_makes_a_proven_optimum_worse(in_flight: int) -> None:
    """P03, on general links: the value over the first 2, 3, 4 devices does not rise."""
    table = random_instance(3, 4, 6, objective="interval", is_uniform=False, is_identical=False).table
    table = replace(table, capacity_bytes=table.capacity_bytes * 2)
    worths = []
    for count in (2, 3, 4):
        part = replace(
            table,
            device_names=table.device_names[:count], device_cards=table.device_cards[:count],
            device_node=table.device_node[:count], device_class=table.device_class[:count],
            link_class=table.link_class[:count, :count],
        )  # fmt: skip
        result = CpSatPlanner().solve(PlacementInstance(part, IntervalObjective(in_flight)))
        assert result.status in (Status.OPTIMAL, Status.INFEASIBLE)
        worths.append(float("inf") if result.objective is None else result.objective)
    assert worths == sorted(worths, reverse=True)


def test_unknown_ilp_back_end_is_refused() -> None:
    with pytest.raises(InputError, match="scip"):
        IlpPlanner("scip")
