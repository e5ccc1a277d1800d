"""A plan for another engine: the plan itself where the engine can run it, else the best one with one degree for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from experiments.comparison import Comparison, MethodOutcome
from experiments.problem_setup import ProblemSetup
from runtime.export import EngineExport, export_vllm, vllm_obstacles
from slob_opt.cost.build import build_table
from slob_opt.cost.groups import most_equal_cards, usable_degrees
from slob_opt.errors import InputError
from slob_opt.planning.instance import PlacementInstance
from slob_opt.problem.cluster import Cluster

ENGINES = ("vllm",)


@dataclass(frozen=True, slots=True)
class PlanExport:
    """What another engine is told.

    Attributes
    ----------
    engine
        Its name.
    obstacles
        Why it can't run the plan, one sentence each; empty when it can.
    engines
        What to start, one per pipeline; empty when neither the plan nor a substitute can be run.
    substitute
        The plan that is exported in place of one with obstacles; ``None`` without obstacles or without such a plan.
    comparison
        Where the substitute comes from; ``None`` with it.
    degree
        Tensor-parallel degree of the substitute; ``None`` with it.
    """

    engine: str
    obstacles: tuple[str, ...]
    engines: tuple[EngineExport, ...]
    substitute: MethodOutcome | None = None
    comparison: Comparison | None = None
    degree: int | None = None


def with_one_degree(setup: ProblemSetup, degree: int) -> ProblemSetup | None:
    """Return the problem on the cards that can work in groups of one degree; ``None`` when there are none.

    Nodes that don't offer the degree are left out of the cluster.
    """
    kept = tuple(
        replace(node, tp_degrees=(degree,))
        for node in setup.cluster.nodes
        if degree in usable_degrees(setup.model, node) and degree <= most_equal_cards(node)
    )
    if not kept:
        return None
    names = {node.name for node in kept} | {device.name for node in kept for device in node.devices}
    overrides = {pair: link for pair, link in setup.cluster.overrides.items() if names.issuperset(pair)}
    cluster: Cluster = replace(setup.cluster, nodes=kept, overrides=overrides)
    table = build_table(cluster, setup.model, setup.traffic, setup.cost_options)
    instance = PlacementInstance(table, setup.instance.objective, f"{setup.instance.name} with TP {degree} only")
    return replace(setup, cluster=cluster, instance=instance)


def export_plan(
    engine: str, setup: ProblemSetup, best: MethodOutcome, search: Callable[[ProblemSetup], Comparison]
) -> PlanExport:
    """Return a plan for another engine.

    Parameters
    ----------
    engine
        One of :data:`ENGINES`.
    setup
        The problem.
    best
        Its plan.
    search
        Plans anew; called once per tensor-parallel degree when the engine can't run the plan.

    Raises
    ------
    InputError
        When the engine is unknown or there is no plan.
    """
    if engine not in ENGINES:
        raise InputError(f"no export for engine {engine!r}, expected one of {', '.join(ENGINES)}")
    placement = best.result.placement
    if placement is None:
        raise InputError("there is no plan to export")
    obstacles = vllm_obstacles(placement)
    if not obstacles:
        return PlanExport(engine, (), export_vllm(placement, setup.cluster))
    found: PlanExport | None = None
    for degree in sorted({d for node in setup.cluster.nodes for d in usable_degrees(setup.model, node)}):
        changed = with_one_degree(setup, degree)
        if changed is None:
            continue
        comparison = search(changed)
        plan = comparison.best
        if plan is None or plan.result.placement is None or vllm_obstacles(plan.result.placement):
            continue
        worth = plan.result.objective or 0.0
        if found is None or found.substitute is None or worth < (found.substitute.result.objective or 0.0):
            engines = export_vllm(plan.result.placement, changed.cluster)
            found = PlanExport(engine, obstacles, engines, plan, comparison, degree)
    return found or PlanExport(engine, obstacles, ())
