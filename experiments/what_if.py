"""What a plan would gain from ten per cent more of one resource."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from experiments.gap_curves import natural
from experiments.problem_setup import ProblemSetup
from slob_opt.cost.build import build_table
from slob_opt.planning.evaluate import Evaluation, evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import Planner, SolveLimits
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Device, Link
from slob_opt.problem.placement import Placement

SMALL_SHARE = 0.01
"""Share of the token interval below which links are said not to be the bottleneck; from a user's case (400 to 800 Gb/s
changed nothing), "under 1 % of step"."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The effect of more of one resource.

    Attributes
    ----------
    resource
        In words.
    same_plan
        Value of the unchanged plan, natural scale (seconds or tokens/s); ``None`` when the plan is no longer allowed.
    same_plan_gain
        Relative gain of the unchanged plan, positive is better; ``None`` with `same_plan`.
    new_plan, new_plan_gain
        The same for a plan made anew, with the old one as a start; ``None`` when none was made.
    """

    resource: str
    same_plan: float | None
    same_plan_gain: float | None
    new_plan: float | None
    new_plan_gain: float | None


@dataclass(frozen=True, slots=True)
class LinkShare:
    """How much of a pipeline's token interval its links take.

    Attributes
    ----------
    pipeline
        Index.
    share
        (hops + return hop) / interval.
    is_bottleneck
        Whether the busiest link, not the stages, sets the interval.
    """

    pipeline: int
    share: float
    is_bottleneck: bool


def _map_devices(cluster: Cluster, change: Callable[[Device], Device]) -> Cluster:
    def node(n: Node) -> Node:
        return replace(n, devices=tuple(change(d) for d in n.devices))

    return replace(cluster, nodes=tuple(node(n) for n in cluster.nodes))


def _map_links(cluster: Cluster, change: Callable[[Link], Link], nic: float = 1.0) -> Cluster:
    nodes = tuple(
        replace(
            n,
            intra_link=None if n.intra_link is None else change(n.intra_link),
            nic_bytes_per_s=None if n.nic_bytes_per_s is None else n.nic_bytes_per_s * nic,
        )
        for n in cluster.nodes
    )
    return replace(
        cluster,
        nodes=nodes,
        inter_link=change(cluster.inter_link),
        intra_link=change(cluster.intra_link),
        overrides={pair: change(link) for pair, link in cluster.overrides.items()},
    )


def _faster_device(device: Device, factor: float) -> Device:
    """More FLOP/s; a measured time per layer is left alone, since it's not known what limits it."""
    return replace(device, peak_flops=device.peak_flops * factor)


def scaled_clusters(cluster: Cluster, factor: float = 1.1) -> tuple[tuple[str, Cluster], ...]:
    """Return (resource in words, cluster with `factor` times as much of it); latency is divided instead."""
    more = f"{factor - 1:+.0%}"
    return (
        (
            f"link bandwidth {more}",
            _map_links(cluster, lambda k: Link(k.bytes_per_s * factor, k.latency_s), nic=factor),
        ),
        (
            f"link latency {1 / factor - 1:+.0%}",
            _map_links(cluster, lambda k: Link(k.bytes_per_s, k.latency_s / factor)),
        ),
        (
            f"device memory {more}",
            _map_devices(cluster, lambda d: replace(d, memory_bytes=int(d.memory_bytes * factor))),
        ),
        (
            f"memory bandwidth {more}",
            _map_devices(cluster, lambda d: replace(d, bytes_per_s=d.bytes_per_s * factor)),
        ),
        (f"FLOP/s {more}", _map_devices(cluster, lambda d: _faster_device(d, factor))),
    )


def what_if(
    setup: ProblemSetup, placement: Placement, planner: Planner | None, limits: SolveLimits, factor: float = 1.1
) -> tuple[WhatIf, ...]:
    """Return the effect of `factor` times each resource, most helpful first.

    Parameters
    ----------
    setup
        The problem.
    placement
        A plan that is allowed.
    planner
        Makes a plan anew for each changed cluster, starting from `placement`; ``None`` leaves that out.
    limits
        Of each new plan.
    """
    base = evaluate(setup.instance, placement).objective
    if base is None:
        return ()
    rows = []
    throughput = setup.instance.is_throughput
    for resource, cluster in scaled_clusters(setup.cluster, factor):
        table = build_table(cluster, setup.model, setup.traffic, setup.cost_options)
        instance = PlacementInstance(table, setup.instance.objective, f"{setup.instance.name}, {resource}")
        same = evaluate(instance, placement).objective
        new = None
        if planner is not None:
            new = planner.solve(instance, incumbent=placement if same is not None else None, limits=limits).objective
        rows.append(
            WhatIf(
                resource=resource,
                same_plan=None if same is None else natural(same, throughput),
                same_plan_gain=None if same is None else _gain(base, same),
                new_plan=None if new is None else natural(new, throughput),
                new_plan_gain=None if new is None else _gain(base, new),
            )
        )

    def worth(row: WhatIf) -> float:
        return max(row.same_plan_gain or 0.0, row.new_plan_gain or 0.0)

    return tuple(sorted(rows, key=worth, reverse=True))


def _gain(before: float, after: float) -> float:
    """Relative improvement of a minimised value in natural terms: rate growth, or time saved."""
    return (before - after) / abs(before)


def link_shares(evaluation: Evaluation) -> tuple[LinkShare, ...]:
    """Return the links' share of each pipeline's token interval."""
    shares = []
    for index, report in enumerate(evaluation.pipelines):
        slowest = max(stage.time_s for stage in report.stages)
        stages_s = sum(stage.time_s for stage in report.stages)
        line_s = stages_s + report.hops_s + report.return_s
        by_occupancy = report.interval_s > line_s and report.occupancy_s > slowest
        shares.append(LinkShare(index, (report.hops_s + report.return_s) / report.interval_s, by_occupancy))
    return tuple(shares)


def link_sentence(evaluation: Evaluation) -> str:
    """Return one sentence that says whether links are what limits a plan."""
    shares = link_shares(evaluation)
    jammed = [s.pipeline for s in shares if s.is_bottleneck]
    if jammed:
        which = ", ".join(map(str, jammed))
        return f"a link is the bottleneck of pipeline {which}: faster links raise its rate"
    if evaluation.nic_factor < 1:
        return (
            f"shared network cards let through {evaluation.nic_factor:.1%} of the pipelines' rates: "
            "they are the bottleneck"
        )
    largest = max((s.share for s in shares), default=0.0)
    if largest == 0:
        return "no pipeline uses a link"
    if largest < SMALL_SHARE:
        return f"links are not the bottleneck: they take {largest:.2%} of the token interval"
    return f"links take up to {largest:.1%} of the token interval; stages set the rest"
