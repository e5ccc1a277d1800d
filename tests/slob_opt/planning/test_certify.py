"""Plans, worths and statuses are recomputed; nothing that a planner says is taken over."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from certify_instances import random_instance

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.cost.table import CostTable
from slob_opt.planning.bounds import closed_form_bound
from slob_opt.planning.certify import certify
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.exact_worth import exact_worth
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.result import SolveResult, Status
from slob_opt.planning.witness import CapacityWitness, EnumerationWitness, MemoryWitness, ThresholdWitness
from slob_opt.problem.placement import Pipeline, Placement, Stage


def two_cards(num_layers: int = 4, *, nic_bytes_per_s: float = float("inf")) -> CostTable:
    """Card a: 0.25 s a layer, card b: 0.5 s; 40 and 100 bytes; a layer is 10 bytes and 1 byte a sequence."""
    table = direct_table(
        [DirectClass("a", 1, 40, 0.25), DirectClass("b", 1, 100, 0.5)],
        num_layers,
        layer_bytes=10,
        kv_bytes=1,
        embed_bytes=3,
        head_bytes=5,
        workspace_bytes=2,
        batch_sizes=(1, 2),
        hop_bytes_per_token=1 << 20,
        latency_s=0.125,
        bytes_per_s=float(1 << 23),
    )
    return replace(table, nic_bytes_per_s=np.full(2, nic_bytes_per_s))


def chain(*layers: int, k: int = 1, b: int = 1) -> Placement:
    """Cards 0, 1, ... in a row with so many layers each."""
    ends = np.cumsum(layers).tolist()
    stages = (Stage((d,), end - n, end) for d, (n, end) in enumerate(zip(layers, ends, strict=True)))
    return Placement((Pipeline(tuple(stages), k, b),))


def claim(placement: Placement | None, objective: float | None, **changes: object) -> SolveResult:
    result = SolveResult("hand", Status.FEASIBLE, placement, objective, None, 0.0)
    return replace(result, **changes)  # type: ignore[arg-type]  # tests pass fields by name


def test_worth_is_an_exact_rational() -> None:
    # Stages 2 x 0.25 and 2 x 0.5; a hop of 2^20 bytes at 2^23 B/s is 1/8 s, and 1/8 s latency; back: 4 bytes at
    # 2^23 B/s are 2^-21 s and 1/8 s latency. Sum: 1.5 + 0.25 + 0.125 + 2^-21; K = 2 times the slowest stage is 2.
    one = PlacementInstance(two_cards(), IntervalObjective(1))
    two = PlacementInstance(two_cards(), IntervalObjective(2))
    assert exact_worth(one, chain(2, 2)).objective == Fraction(15, 8) + Fraction(1, 1 << 21)
    assert exact_worth(two, chain(2, 2, k=2)).objective == 2
    certificate = certify(claim(chain(2, 2, k=2), 2.0), two)
    assert (certificate.is_valid, certificate.numerator, certificate.denominator) == (True, "2", "1")
    assert certificate.exact_objective == 2
    assert certificate.bound_status == "none"


def test_rate_is_an_exact_rational() -> None:
    instance = PlacementInstance(two_cards(), ThroughputObjective(4))
    worth = exact_worth(instance, chain(2, 2, k=2, b=1))
    assert worth.objective == -1  # two sequences in 2 s
    assert exact_worth(instance, chain(2, 2, k=3, b=1)).objective == -1  # three in 3 s


def test_memory_rows_by_part() -> None:
    # Card a, first stage, 2 layers, K = 2: 2 workspace + 20 weights + 2 * 2 KV + 3 embedding = 29 of 40 bytes.
    # Card b, last stage: 2 + 20 + 4 + 5 head = 31 of 100.
    instance = PlacementInstance(two_cards(), IntervalObjective(2))
    rows = exact_worth(instance, chain(2, 2, k=2)).memory
    assert [(r.need_bytes, r.capacity_bytes) for r in rows] == [(29, 40), (31, 100)]
    assert dict(rows[0].parts) == {"workspace": 2, "weights": 20, "kv": 4, "embedding": 3}


def test_a_stage_that_does_not_fit_is_named_with_need_and_room() -> None:
    # 4 layers alone on a: 2 + 40 + 4 + 3 + 5 = 54 bytes of 40.
    instance = PlacementInstance(two_cards(), IntervalObjective(1))
    certificate = certify(claim(chain(4), 1.0), instance)
    assert not certificate.is_valid
    assert any("a-0 needs 54 bytes" in v and "has 40" in v for v in certificate.violations)
    assert certificate.status is Status.UNKNOWN


@pytest.mark.parametrize(("layers", "stages"), [(30, 4), (31, 2), (28, 3)])
def test_stages_that_do_not_add_up_to_the_model_are_refused_with_numbers(layers: int, stages: int) -> None:
    """Case P32: 30 layers on 4 stages built as 4 x 7 = 28; every count that floor division loses."""
    table = direct_table([DirectClass("a", stages, 1000, 0.25)], layers, layer_bytes=1)
    share = layers // stages
    plan = chain(*[share] * stages)
    certificate = certify(claim(plan, 1.0), PlacementInstance(table, IntervalObjective(1)))
    assert not certificate.is_valid
    assert f"= {share * stages} layers, the model has {layers}" in certificate.violations[0]


@pytest.mark.parametrize("factor", [0.99, 1 + 2e-9, 1 - 2e-9, 2.0, -1.0])
def test_a_false_objective_is_told(factor: float) -> None:
    instance = PlacementInstance(two_cards(), IntervalObjective(2))
    certificate = certify(claim(chain(2, 2, k=2), 2.0 * factor), instance)
    assert not certificate.is_valid
    assert "recomputed it is 2" in certificate.violations[0]


def test_rounding_of_the_claim_is_forgiven() -> None:
    instance = PlacementInstance(two_cards(), IntervalObjective(2))
    assert certify(claim(chain(2, 2, k=2), 2.0 * (1 + 5e-10)), instance).is_valid


@pytest.mark.parametrize(
    ("objective", "placement", "word"),
    [
        (ThroughputObjective(2), chain(2, 2, k=3), "K = 3, the limit is 2"),
        (ThroughputObjective(4, max_in_flight=3), chain(2, 2, k=2, b=2), "4 sequences in flight, the limit is 3"),
        (ThroughputObjective(4, max_interval_s=1.9), chain(2, 2, k=2), "interval of 2 s, the limit is 1.9 s"),
        (ThroughputObjective(4), chain(2, 2, b=3), "batch size 3 is not in the table's grid"),
        (IntervalObjective(2), chain(2, 2, k=1), "the objective has K = 2"),
        (IntervalObjective(1), chain(2, 2, b=2), "the objective has K = 1, b = 1"),
    ],
)
def test_every_limit_is_checked(objective: IntervalObjective, placement: Placement, word: str) -> None:
    certificate = certify(claim(placement, -1.0), PlacementInstance(two_cards(), objective))
    assert any(word in v for v in certificate.violations)
    assert not certificate.is_valid


def test_shared_and_unknown_cards_are_violations() -> None:
    instance = PlacementInstance(two_cards(), ThroughputObjective(1))
    whole = Pipeline((Stage((1,), 0, 4),))
    shared = certify(claim(Placement((whole, whole)), -1.0), instance)
    assert any("disjoint" in v for v in shared.violations)
    unknown = certify(claim(Placement((Pipeline((Stage((0, 1), 0, 4),)),)), -1.0), instance)
    assert any("are no device" in v for v in unknown.violations)


def test_the_interval_objective_takes_one_pipeline() -> None:
    table = direct_table([DirectClass("a", 2, 100, 0.25)], 4, layer_bytes=10)
    plan = Placement((Pipeline((Stage((0,), 0, 4),)), Pipeline((Stage((1,), 0, 4),))))
    certificate = certify(claim(plan, 1.0), PlacementInstance(table, IntervalObjective(1)))
    assert "2 pipelines, the interval objective takes one" in certificate.violations


def test_the_cost_table_is_built_again() -> None:
    instance = PlacementInstance(two_cards(), IntervalObjective(2))
    result = claim(chain(2, 2, k=2), 2.0)
    assert certify(result, instance, rebuild=two_cards).is_valid
    other = certify(result, instance, rebuild=lambda: two_cards(5))
    assert not other.is_valid
    assert "is not the one that its inputs give" in other.violations[0]


@pytest.mark.parametrize("is_throughput", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_agrees_with_the_evaluator(seed: int, is_throughput: bool) -> None:
    """Two implementations, one in floats and one in rationals, of the same worth and the same verdict."""
    rng = np.random.default_rng(1000 + seed)
    instance = random_instance(
        seed, is_throughput=is_throughput, has_pair_links=seed % 2 == 0, has_unequal_layers=seed % 3 == 0
    )
    table = instance.table
    for _ in range(10):
        size = int(rng.integers(1, min(table.num_devices, table.num_layers) + 1))
        cuts = [
            0,
            *sorted(rng.choice(np.arange(1, table.num_layers), size - 1, replace=False).tolist()),
            table.num_layers,
        ]
        order = rng.permutation(table.num_devices)[:size].tolist()
        stages = tuple(Stage((d,), cuts[i], cuts[i + 1]) for i, d in enumerate(order))
        k = int(rng.integers(1, 5)) if is_throughput else instance.shapes()[0][1]
        b = int(rng.choice(table.batch_sizes[1:])) if is_throughput else 1
        plan = Placement((Pipeline(stages, k, b),))
        usual, exact = evaluate(instance, plan), exact_worth(instance, plan)
        assert usual.is_feasible == (not exact.violations)
        if usual.objective is not None:
            assert exact.objective is not None
            assert usual.objective == pytest.approx(float(exact.objective), rel=1e-12)


def test_shared_network_cards_limit_the_sum_of_rates() -> None:
    # Two pipelines over the same two nodes: each sends 2^20 bytes a token forwards, and the node's card carries 2^20
    # bytes a second in all. Alone each makes 1 token/s, together they make 1 token/s as well.
    table = direct_table(
        [DirectClass("a", 4, 100, 1 / 16)],
        4,
        layer_bytes=10,
        batch_sizes=(1,),
        hop_bytes_per_token=1 << 20,
        bytes_per_s=float(1 << 24),
        nodes=[0, 0, 1, 1],
    )
    table = replace(table, nic_bytes_per_s=np.array([float(1 << 20), float(1 << 20)]))
    pair = [Pipeline((Stage((d,), 0, 2), Stage((d + 2,), 2, 4)), 1, 1) for d in (0, 1)]
    instance = PlacementInstance(table, ThroughputObjective(1))
    plan = Placement(tuple(pair))
    usual, exact = evaluate(instance, plan), exact_worth(instance, plan)
    assert exact.objective is not None
    assert float(exact.objective) == pytest.approx(-1.0, rel=1e-12)
    assert usual.objective == pytest.approx(float(exact.objective), rel=1e-9)
    assert certify(claim(plan, usual.objective), instance).is_valid


def test_optimal_needs_a_verified_bound() -> None:
    instance = PlacementInstance(two_cards(), IntervalObjective(2))
    best = ExhaustivePlanner().solve(instance)
    assert certify(best, instance).status is Status.OPTIMAL
    bare = certify(replace(best, witness=None), instance)
    assert (bare.bound_status, bare.status) == ("claimed", Status.FEASIBLE)
    assert "needs a second method" in bare.reasons[-1]


def test_a_status_that_the_gap_does_not_support_is_ours_to_change() -> None:
    """Case O02: a solver calls what it had at the time limit optimal; the gap says FEASIBLE."""
    instance = PlacementInstance(two_cards(), IntervalObjective(2))
    result = claim(chain(2, 2, k=2), 2.0, status=Status.OPTIMAL, bound=1.0, witness=ThresholdWitness("pattern"))
    certificate = certify(result, instance)
    assert certificate.status is Status.FEASIBLE
    assert certificate.bound_status == "verified"
    assert certificate.gap == pytest.approx(0.5)


def test_a_bound_that_the_own_plan_beats_is_refuted() -> None:
    instance = PlacementInstance(two_cards(), IntervalObjective(2))
    certificate = certify(claim(chain(2, 2, k=2), 2.0, bound=2.001, status=Status.OPTIMAL), instance)
    assert (certificate.bound_status, certificate.is_valid, certificate.gap) == ("refuted", False, None)


def test_without_a_plan_nothing_is_claimed() -> None:
    """Case O04: no solution within the limit means UNKNOWN, and an objective without a plan is a false claim."""
    instance = PlacementInstance(two_cards(), IntervalObjective(1))
    empty = certify(claim(None, None, status=Status.UNKNOWN), instance)
    assert (empty.is_valid, empty.status, empty.objective, empty.memory) == (True, Status.UNKNOWN, None, ())
    assert not certify(claim(None, 1.0, status=Status.FEASIBLE), instance).is_valid


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), -float("inf")])
def test_a_bound_that_is_no_number_is_refuted(bound: float) -> None:
    instance = PlacementInstance(two_cards(), IntervalObjective(2))
    assert certify(claim(chain(2, 2, k=2), 2.0, bound=bound), instance).bound_status == "refuted"


def test_infeasible_is_told_only_when_it_is_proven() -> None:
    """Cases O06, O09 and O11: 47 bytes for a model of 48 are proven too few, 48 bytes never are."""
    small = direct_table([DirectClass("a", 1, 47, 0.25)], 4, layer_bytes=12)
    result = claim(None, None, status=Status.INFEASIBLE, witness=MemoryWitness(48, 47))
    proven = certify(result, PlacementInstance(small, IntervalObjective(1)))
    assert (proven.status, proven.bound_status) == (Status.INFEASIBLE, "verified")
    large = direct_table([DirectClass("a", 1, 48, 0.25)], 4, layer_bytes=12)
    wrong = certify(result, PlacementInstance(large, IntervalObjective(1)))
    assert (wrong.status, wrong.bound_status, wrong.is_valid) == (Status.UNKNOWN, "refuted", False)
    for witness in (EnumerationWitness(1), ThresholdWitness("pattern"), None):
        again = certify(replace(result, witness=witness), PlacementInstance(large, IntervalObjective(1)))
        assert again.status is Status.UNKNOWN


def test_infeasible_with_a_plan_contradicts_itself() -> None:
    instance = PlacementInstance(two_cards(), IntervalObjective(2))
    result = claim(chain(2, 2, k=2), 2.0, status=Status.INFEASIBLE)
    certificate = certify(result, instance)
    assert not certificate.is_valid
    assert certificate.status is Status.FEASIBLE


def test_closed_formulas_are_recomputed_by_name() -> None:
    instance = PlacementInstance(two_cards(), IntervalObjective(2))
    found = closed_form_bound(instance)
    assert found is not None
    bound, witness = found
    result = claim(chain(2, 2, k=2), 2.0, bound=bound, witness=witness)
    assert certify(result, instance).bound_status == "verified"
    assert certify(replace(result, bound=bound * (1 + 1e-6)), instance).bound_status == "refuted"
    other = certify(replace(result, witness=CapacityWitness("no such formula")), instance)
    assert other.bound_status == "claimed"
