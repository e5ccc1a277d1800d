"""ILP, CP-SAT and enumeration agree on random instances; all of it on one thread, in this process."""

from dataclasses import replace

import numpy as np
import pytest
from solver_instances import random_instance, random_table, with_group
from solver_runs import Told, run_here

from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, Status
from solvers.backend import BackendLimits, Ending
from solvers.messages import Backend

pytest.importorskip("ortools", reason="OR-Tools is not installed: pip install 'slob[exact]'")
pytest.importorskip("highspy", reason="highspy is not installed: pip install 'slob[exact]'")

LIMITS = BackendLimits(time_s=120.0, deterministic_s=60.0)


def check(told: Told, best: float | None, backend: Backend) -> None:
    """The run proved the enumerated optimum (or that there is none), within the tolerance of its own gap."""
    if best is None:
        assert told.finished.ending is Ending.INFEASIBLE
        assert told.placement is None
        return
    assert told.finished.ending is Ending.FINISHED
    assert told.objective == pytest.approx(best, rel=OPTIMALITY_TOLERANCE)
    assert told.bound is not None
    margin = 1e-7 if backend.is_ilp else 0.0  # as the planner takes off; floats of the ILP
    assert told.bound - margin * abs(told.bound) <= best
    assert told.bound == pytest.approx(best, rel=OPTIMALITY_TOLERANCE)


def enumerate_best(instance: PlacementInstance) -> float | None:
    result = ExhaustivePlanner().solve(instance)
    assert result.status in (Status.OPTIMAL, Status.INFEASIBLE)
    return result.objective


@pytest.mark.parametrize("is_uniform", [True, False], ids=["uniform", "general-links"])
@pytest.mark.parametrize("is_identical", [True, False], ids=["identical", "unequal-layers"])
@pytest.mark.parametrize("seed", range(8))
def test_interval(seed: int, is_uniform: bool, is_identical: bool) -> None:
    instance = random_instance(seed, 5, 6, objective="interval", is_uniform=is_uniform, is_identical=is_identical)
    best = enumerate_best(instance)
    for backend in (Backend.HIGHS, Backend.CPSAT):
        check(run_here(instance, backend, limits=LIMITS), best, backend)


@pytest.mark.parametrize("is_uniform", [True, False], ids=["uniform", "general-links"])
@pytest.mark.parametrize("is_identical", [True, False], ids=["identical", "unequal-layers"])
@pytest.mark.parametrize("seed", range(4))
def test_throughput(seed: int, is_uniform: bool, is_identical: bool) -> None:
    instance = random_instance(seed, 3, 4, objective="throughput", is_uniform=is_uniform, is_identical=is_identical)
    best = enumerate_best(instance)
    for backend in (Backend.HIGHS, Backend.CPSAT):
        check(run_here(instance, backend, limits=LIMITS), best, backend)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("objective", [IntervalObjective(2), ThroughputObjective(2)], ids=["interval", "throughput"])
def test_groups_exclude_the_cards_they_hold(seed: int, objective: IntervalObjective | ThroughputObjective) -> None:
    """Device 3 is the tensor-parallel group of cards 0 and 1."""
    table = random_table(seed, 4, 4, is_uniform=seed % 2 == 0, is_identical=True)
    instance = PlacementInstance(with_group(table, (0, 1), 3), objective)
    best = enumerate_best(instance)
    for backend in (Backend.HIGHS, Backend.CPSAT):
        told = run_here(instance, backend, limits=LIMITS)
        check(told, best, backend)
        assert told.placement is None or told.placement.has_disjoint_pipelines


@pytest.mark.parametrize("seed", range(4))
def test_limited_network_cards_bind_the_interval(seed: int) -> None:
    """K times the busy time of a node's card counts; the card is slow enough to matter."""
    table = random_table(seed, 4, 5, is_uniform=True, is_identical=True)
    table = replace(
        table,
        nic_bytes_per_s=np.full(table.nic_bytes_per_s.size, 2e6),
        hop_bytes=np.full(table.hop_bytes.size, 20_000, np.int64),
    )
    instance = PlacementInstance(table, IntervalObjective(4))
    best = enumerate_best(instance)
    for backend in (Backend.HIGHS, Backend.CPSAT):
        check(run_here(instance, backend, limits=LIMITS), best, backend)


@pytest.mark.parametrize("objective", ["interval", "throughput"])
@pytest.mark.parametrize("seed", range(3))
def test_cbc_agrees(seed: int, objective: str) -> None:
    """O05, O06: a third back end, with its own presolve and tolerances."""
    pulp_adapter = pytest.importorskip("solvers.pulp_adapter")
    if not pulp_adapter.has_cbc():
        pytest.skip("CBC comes with neither this PuLP nor this machine: pip install 'pulp[cbc]'")
    instance = random_instance(seed, 3, 4, objective=objective, is_uniform=False, is_identical=True)
    told = run_here(instance, Backend.CBC, limits=LIMITS)
    best = enumerate_best(instance)
    if best is None:
        assert told.finished.ending is Ending.INFEASIBLE
    else:
        assert told.objective == pytest.approx(best, rel=1e-5)  # CBC's tolerances are its own


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["interval", "throughput"])
@pytest.mark.parametrize("seed", range(20, 26))
def test_presolve_changes_no_proven_optimum(seed: int, objective: str) -> None:
    """O11, O22: with and without presolve both back ends prove one value, or both infeasibility."""
    instance = random_instance(seed, 3, 4, objective=objective, is_uniform=False, is_identical=seed % 2 == 0)
    best = enumerate_best(instance)
    for backend in (Backend.HIGHS, Backend.CPSAT):
        for has_presolve in (True, False):
            check(run_here(instance, backend, limits=replace(LIMITS, has_presolve=has_presolve)), best, backend)
