"""Names of planners: all can be loaded, unknown ones are told the nearest, sizes are respected."""

from __future__ import annotations

import pytest

from experiments.registry import (
    PLANNERS,
    STUDIES,
    default_methods,
    load_target,
    make_planner,
    nearest,
    parse_methods,
    planner_entry,
)
from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.errors import InputError, SolverUnavailable
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective


def instance(count: int, *, throughput: bool = True, general: bool = False) -> PlacementInstance:
    """`count` equal devices, with equal links or with two link speeds."""
    links = None
    if general:
        links = [[(1e9 * (1 + (i + j) % 2), 1e-3) for j in range(count)] for i in range(count)]
    table = direct_table([DirectClass("a", count, 100, 1e-3)], 8, layer_bytes=10, pair_links=links)
    return PlacementInstance(table, ThroughputObjective(2) if throughput else IntervalObjective(1))


@pytest.mark.parametrize("name", PLANNERS)
def test_every_planner_answers_to_its_name(name: str) -> None:
    assert make_planner(name).name == name


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_run(name: str) -> None:
    assert callable(load_target(STUDIES[name]))


@pytest.mark.parametrize(("typed", "meant"), [("parametrc", "parametric"), ("cp-sat", "cpsat"), ("Slob", "slob")])
def test_an_unknown_name_is_told_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{meant}'"):
        planner_entry(typed)


def test_a_name_like_nothing_is_told_all_names() -> None:
    assert nearest("zzzz", ["b", "a"]) == ", expected one of a, b"


def test_methods_are_a_list_without_doubles() -> None:
    assert parse_methods(" slob, ILP ,slob") == ("slob", "ilp")
    assert parse_methods("all") is None
    with pytest.raises(InputError, match="expected names"):
        parse_methods(" , ")


def test_a_missing_package_is_told_with_what_to_install() -> None:
    with pytest.raises(SolverUnavailable, match="pip install"):
        load_target("no_such_package.module:Thing")


@pytest.mark.parametrize(
    ("count", "throughput", "general", "absent"),
    [
        (4, True, False, set()),
        (4, False, False, set()),
        (4, True, True, set()),
        (14, True, False, {"exhaustive"}),
        (14, True, True, {"exhaustive"}),
        (50, True, True, {"exhaustive", "ilp", "cpsat", "pattern-ilp"}),
        (20, True, False, {"exhaustive", "ilp", "cpsat"}),
        (600, True, False, {"exhaustive", "ilp", "cpsat", "parametric", "pattern-ilp"}),
    ],
)
def test_methods_are_started_where_they_make_sense(
    count: int, throughput: bool, general: bool, absent: set[str]
) -> None:
    runs, skipped = default_methods(instance(count, throughput=throughput, general=general))
    assert {name for name, _ in skipped} == absent
    assert set(runs) == set(PLANNERS) - absent
    assert all(reason for _, reason in skipped)
