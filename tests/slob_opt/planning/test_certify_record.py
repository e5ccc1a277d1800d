"""A certified result survives the way into plan.json and back, and the claim certifies again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from certify_instances import random_instance

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.errors import InputError
from slob_opt.planning.certify import certify
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective
from slob_opt.planning.plan_record import claim_of, objective_from_json, objective_to_json, placement_of, plan_record
from slob_opt.planning.result import SolveResult, Status
from slob_opt.planning.witness import (
    CapacityWitness,
    EnumerationWitness,
    MemoryWitness,
    PatternWitness,
    RelaxedPriceWitness,
    SubsetWitness,
    ThresholdWitness,
    Witness,
)
from slob_opt.planning.witness_json import witness_from_json, witness_to_json
from slob_opt.problem.files.plan_file import PlanFile, plan_from_json, plan_to_json

INSTANCE = PlacementInstance(
    direct_table([DirectClass("a", 1, 100, 0.25), DirectClass("b", 1, 100, 0.5)], 4, layer_bytes=10),
    IntervalObjective(1),
)
WITNESSES: list[Witness] = [
    CapacityWitness("fill"),
    MemoryWitness(2, 1),
    PatternWitness((0.1, 1 / 3), 0.2, ((1, 0), (2, 1)), (0.1, 0.7)),
    PatternWitness((1.0,)),
    RelaxedPriceWitness((0.1,), 7, (0.0, 1.5)),
    ThresholdWitness("subset"),
    SubsetWitness((0.0, 0.1, 0.2, 0.3)),
    EnumerationWitness(5),
]


@pytest.mark.parametrize("is_throughput", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_result_certifies_again_from_its_file(seed: int, is_throughput: bool) -> None:
    instance = random_instance(seed, is_throughput=is_throughput, has_pair_links=seed % 2 == 0)
    result = ExhaustivePlanner().solve(instance)
    certificate = certify(result, instance)
    plan = plan_record(
        result, certificate, instance, versions={"slob": "0"}, commit="abc", created="2024-01-01T00:00:00Z"
    )
    text = plan_to_json(plan)
    back = plan_from_json(text)
    assert plan_to_json(back) == text
    claim = claim_of(back, instance)
    assert (claim.placement, claim.objective, claim.bound) == (result.placement, result.objective, result.bound)
    assert (claim.witness, claim.status) == (result.witness, result.status)
    assert certify(claim, instance) == certificate
    if is_throughput and result.objective is not None:
        assert plan.value == -result.objective
        assert plan.unit == "tokens/s"
        assert plan.certificate is not None
        assert not (plan.certificate.numerator or "-").startswith("-")


@pytest.mark.parametrize("witness", WITNESSES)
def test_witnesses_keep_every_bit(witness: Witness) -> None:
    assert witness_from_json(witness_to_json(witness)) == witness


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({}, "type"),
        ({"type": "no such"}, "type"),
        ({"type": "threshold"}, "kind"),
        ({"type": "threshold", "kind": 3}, "kind"),
        ({"type": "threshold", "kind": "pattern", "more": 1}, "more"),
        ({"type": "memory", "need_bytes": 1.5, "have_bytes": 1}, "need_bytes"),
        ({"type": "memory", "need_bytes": True, "have_bytes": 1}, "need_bytes"),
        ({"type": "subset", "value": [0.0, "1"]}, "value[1]"),
        ({"type": "pattern", "prices": [1], "slack": 0, "patterns": [[1], [1, 2]], "rates": [1, 1]}, "patterns"),
        ({"type": "pattern", "prices": 1, "slack": 0, "patterns": [], "rates": []}, "prices"),
    ],
)
def test_damaged_witnesses_are_refused_by_key(data: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as caught:
        witness_from_json(data)
    assert caught.value.key == key


@pytest.mark.parametrize("objective", [IntervalObjective(3), ThroughputObjective(4), ThroughputObjective(2, 0.1, 7)])
def test_objectives_go_there_and_back(objective: Objective) -> None:
    assert objective_from_json(objective_to_json(objective)) == objective


def test_a_parameter_of_the_other_objective_is_refused() -> None:
    with pytest.raises(InputError, match="not a parameter of interval"):
        objective_from_json({"kind": "interval", "max_in_flight": 3})
    with pytest.raises(InputError, match="expected one of"):
        objective_from_json({"kind": "flow"})


def test_a_plan_by_hand_is_evaluated() -> None:
    plan = plan_from_json('{"pipelines": [{"stages": [{"device": "b-0", "num_layers": 4}]}]}')
    claim = claim_of(plan, INSTANCE)
    assert (claim.planner, claim.status, claim.bound) == ("by hand", Status.FEASIBLE, None)
    certificate = certify(claim, INSTANCE)
    assert (certificate.is_valid, certificate.objective, certificate.status) == (True, 2.0, Status.FEASIBLE)


@pytest.mark.parametrize(
    ("text", "key", "word"),
    [
        ('{"device": "c-0", "num_layers": 4}', "pipelines[0].stages[0].device", "known are a-0, b-0"),
        ('{"device": "a-0", "num_layers": 3}', "pipelines[0].stages", "3 = 3 layers, the model has 4"),
        ('{"device": "a-0", "num_layers": 4, "cards": [1]}', "pipelines[0].stages[0].cards", "has [0]"),
    ],
)
def test_a_plan_for_other_devices_or_layers_is_refused(text: str, key: str, word: str) -> None:
    plan = plan_from_json(f'{{"pipelines": [{{"stages": [{text}]}}]}}')
    with pytest.raises(InputError) as caught:
        placement_of(plan, INSTANCE.table, file="mine.json")
    assert (caught.value.file, caught.value.key) == ("mine.json", key)
    assert word in caught.value.message


def test_a_plan_of_another_problem_is_refused() -> None:
    result = ExhaustivePlanner().solve(INSTANCE)
    plan = plan_record(result, certify(result, INSTANCE), INSTANCE)
    other_table = direct_table([DirectClass("a", 2, 100, 0.25)], 4, layer_bytes=10)
    with pytest.raises(InputError, match="cost table"):
        claim_of(plan, PlacementInstance(other_table, IntervalObjective(1)))
    with pytest.raises(InputError, match="the plan was made for"):
        claim_of(plan, replace(INSTANCE, objective=IntervalObjective(2)))
    with pytest.raises(InputError, match="this objective has 'tokens/s'"):
        claim_of(PlanFile(plan.pipelines, unit="s"), replace(INSTANCE, objective=ThroughputObjective(2)))


def test_no_plan_is_recorded_as_no_plan() -> None:
    result = SolveResult("slob", Status.UNKNOWN, None, None, None, 0.0, message="gave up")
    plan = plan_record(result, certify(result, INSTANCE), INSTANCE)
    back = plan_from_json(plan_to_json(plan))
    assert back.pipelines == ()
    assert claim_of(back, INSTANCE).placement is None
    assert claim_of(back, INSTANCE).status is Status.UNKNOWN
