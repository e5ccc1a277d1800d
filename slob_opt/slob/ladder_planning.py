"""Makes a ladder: candidate placements by the planners, certified, kept where they carry more with as few cards.

Candidates are the shortest token interval for K = 1, 2, 4, ... in flight (one pipeline, few fast devices first), the
highest throughput with looser and tighter limits on the interval, the first pipelines of each of those, and pipelines
of shortest interval one after the other on the cards that the ones before left free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from slob_opt.cost.build import CostOptions, build_table
from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.errors import InputError
from slob_opt.planning.certify import certify
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective
from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.result import Planner, SolveLimits, SolveResult, Status
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.placement import Pipeline, Placement, Stage
from slob_opt.problem.traffic import TrafficProfile
from slob_opt.scheduling.policy import PipelineLimits
from slob_opt.slob.ladder import Ladder, Lengths, Server
from slob_opt.slob.ladder_memory import CardMemory
from slob_opt.slob.placement import SlobPlanner

IN_FLIGHT = (1, 2, 4, 8)
"""K of the interval candidates."""

INTERVAL_SHARES = (1.0, 0.5, 0.25)
"""Limits on the interval of throughput candidates, in shares of the traffic's time per token."""

EXACT_DEVICES = 12
"""Devices up to which the exact search follows the heuristic."""


@dataclass(frozen=True, slots=True)
class LadderOptions:
    """How a ladder is made.

    Attributes
    ----------
    least_step
        Least ratio of what a level carries to what the one below carries. Chosen: neighbours closer than the rate is
        known to would only be switched between.
    max_rows
        Most requests that hold KV in a pipeline.
    max_chunk_tokens
        Most tokens of a micro-batch; ``None`` sets no limit.
    cost
        Of the cost model.
    exact_time_s
        Wall-clock limit of each exact search, seconds.
    """

    least_step: float = 1.1
    max_rows: int = 128
    max_chunk_tokens: int | None = 512
    cost: CostOptions = field(default_factory=CostOptions)
    exact_time_s: float = 20.0

    def __post_init__(self) -> None:
        if not self.least_step >= 1:
            raise InputError(f"least_step is {self.least_step}, expected at least 1")
        if self.max_rows < 1:
            raise InputError(f"max_rows is {self.max_rows}, expected at least 1")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement before it's known what it's worth.

    Attributes
    ----------
    name
        How it was planned.
    placement
        Over the cards of the whole cluster.
    gap
        To a verified bound; ``None`` where there is none.
    """

    name: str
    placement: Placement
    gap: float | None


def plan_candidates(
    cluster: Cluster,
    model: ModelSpec,
    traffic: TrafficProfile,
    options: LadderOptions,
    *,
    progress: Callable[[str], None] | None = None,
) -> list[Candidate]:
    """Return certified candidates, each placement once.

    Raises
    ------
    InputError
        When the model fits nowhere.
    """
    found: dict[Placement, Candidate] = {}
    table = build_table(cluster, model, traffic, options.cost)
    whole = PlacementInstance(table, ThroughputObjective(16), f"{cluster.name}/{model.name}/parts")
    for name, placement, gap in _plans(cluster, model, traffic, options, progress or (lambda _: None)):
        parts = [Placement(placement.pipelines[:size]) for size in range(1, len(placement.pipelines))]
        named = [(f"{name}, first {len(part.pipelines)}", part) for part in parts]
        for part_name, part in ((name, placement), *named):
            # What is made of plans isn't a plan itself: memory and times are recomputed for it as well.
            claim = SolveResult(part_name, Status.FEASIBLE, part, None, None, 0.0)
            if part not in found and certify(claim, whole).is_valid:
                found[part] = Candidate(part_name, part, gap if part is placement else None)
    if not found:
        raise InputError(f"there is no placement of {model.name} on {cluster.name}")
    return list(found.values())


def _plans(
    cluster: Cluster,
    model: ModelSpec,
    traffic: TrafficProfile,
    options: LadderOptions,
    progress: Callable[[str], None],
) -> Iterator[tuple[str, Placement, float | None]]:
    """Name, placement and gap of whole plans."""
    tpot_s = traffic.tpot_s
    objectives: list[Objective] = [IntervalObjective(k) for k in IN_FLIGHT]
    for share in INTERVAL_SHARES:
        cap = None if tpot_s is None else tpot_s * share
        objectives.append(ThroughputObjective(16, cap, traffic.max_in_flight))
    for objective in objectives:
        cap = objective.max_interval_s if isinstance(objective, ThroughputObjective) else None
        name = objective.name if cap is None else f"{objective.name}-{cap:.3g}s"
        progress(f"planning {name}")
        solved = _solve(cluster, model, traffic, objective, options)
        if solved is not None:
            yield name, *solved
    # One fast pipeline after the other: what runs already stays as it is when a level is added.
    left, cards, taken = cluster, tuple(range(len(cluster.devices))), list[Pipeline]()
    gap: float | None = None
    while True:
        progress(f"planning a pipeline beside {len(taken)}")
        solved = _solve(left, model, traffic, IntervalObjective(1), options)
        if solved is None:
            break
        (pipeline,) = solved[0].pipelines
        gap = solved[1] if not taken else None
        taken.append(_renumbered(pipeline, cards))
        rest = without_cards(left, frozenset(pipeline.cards))
        if rest is None:
            break
        left, kept = rest
        cards = tuple(cards[index] for index in kept)
    if taken:
        yield f"fast-{len(taken)}", Placement(tuple(taken)), gap


def _solve(
    cluster: Cluster, model: ModelSpec, traffic: TrafficProfile, objective: Objective, options: LadderOptions
) -> tuple[Placement, float | None] | None:
    """Return a certified plan and its gap to a verified bound; ``None`` when there is no plan."""
    instance = PlacementInstance(
        build_table(cluster, model, traffic, options.cost), objective, f"{cluster.name}/{model.name}/{objective.name}"
    )
    planners: list[Planner] = [SlobPlanner()]
    if instance.table.num_devices <= EXACT_DEVICES:
        planners.append(ParametricPlanner())
    plan: Placement | None = None
    gap: float | None = None
    for planner in planners:
        limits = SolveLimits(time_s=options.exact_time_s)
        result = planner.solve(instance, incumbent=plan, limits=limits)
        certificate = certify(result, instance)
        if result.placement is None or not certificate.is_valid:
            continue
        plan = result.placement
        gap = certificate.gap if certificate.bound_status == "verified" else None
    return None if plan is None else (plan, gap)


def without_cards(cluster: Cluster, gone: frozenset[int]) -> tuple[Cluster, tuple[int, ...]] | None:
    """Return the cluster without some cards, and the old numbers of those left; ``None`` when none is left.

    A node that only works with more cards than it has left goes as a whole.
    """
    nodes, kept, number = [], [], 0
    for node in cluster.nodes:
        held = [(number + index, device) for index, device in enumerate(node.devices)]
        number += len(node.devices)
        left = [(card, device) for card, device in held if card not in gone]
        degrees = tuple(degree for degree in node.tp_degrees if degree <= len(left))
        if left and degrees:
            nodes.append(replace(node, devices=tuple(device for _, device in left), tp_degrees=degrees))
            kept += [card for card, _ in left]
    if not nodes:
        return None
    names = {node.name for node in nodes} | {device.name for node in nodes for device in node.devices}
    overrides = {pair: link for pair, link in cluster.overrides.items() if set(pair) <= names}
    return replace(cluster, nodes=tuple(nodes), overrides=overrides), tuple(kept)


def _renumbered(pipeline: Pipeline, cards: Sequence[int]) -> Pipeline:
    """Return the pipeline with card i called ``cards[i]``."""
    stages = tuple(Stage(tuple(cards[card] for card in one.cards), one.first, one.end) for one in pipeline.stages)
    return replace(pipeline, stages=stages)


@dataclass(frozen=True, slots=True)
class PlannedLadder:
    """A ladder with what it was made from.

    Attributes
    ----------
    ladder
        Levels by rising rate.
    memory
        Of the cards.
    resident_sets
        Sets of neighbouring levels whose weights fit together; each level is in at least one.
    gaps
        For each level the relative gap to a verified bound of what it was planned for; ``None`` where no bound is
        verified, or where it's a part of a plan.
    """

    ladder: Ladder
    memory: CardMemory
    resident_sets: tuple[tuple[int, ...], ...]
    gaps: tuple[float | None, ...]

    def pipelines(self, level: int) -> tuple[Pipeline, ...]:
        """Return the pipelines of a level."""
        return tuple(self.ladder.servers[place].pipeline for place in self.ladder.levels[level].servers)

    def from_offered(self, level: int, share: float) -> float:
        """Return the offered concurrency from which a level is the lowest that is loaded to a share at most."""
        ladder = self.ladder
        return max([0.0, *(share * ladder.capacity(lower, ladder.lengths) for lower in range(level))])

    def level_bytes(self, level: int) -> dict[int, int]:
        """Return bytes of weights by card."""
        cards = sorted(self.ladder.levels[level].cards)
        pipelines = self.pipelines(level)
        return {card: sum(self.memory.weight_bytes(card, one) for one in pipelines) for card in cards}


def build_ladder(
    cluster: Cluster,
    model: ModelSpec,
    traffic: TrafficProfile,
    options: LadderOptions | None = None,
    *,
    longest_tokens: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> PlannedLadder:
    """Return the ladder of a cluster and a model.

    Parameters
    ----------
    cluster, model, traffic
        What is given.
    options
        ``None`` takes the defaults.
    longest_tokens
        Prompt and output of the longest request that every pipeline must hold; ``None`` is that of the traffic's means.
    progress
        Told what is being planned; ``None`` tells nobody.

    Raises
    ------
    InputError
        When the model fits nowhere, or no placement holds the longest request.
    """
    options = options or LadderOptions()
    memory = CardMemory(cluster, model, options.max_rows, options.cost)
    lengths = Lengths(float(traffic.prompt_tokens), float(traffic.output_tokens))
    longest = longest_tokens or traffic.prompt_tokens + traffic.output_tokens
    held = []
    for candidate in plan_candidates(cluster, model, traffic, options, progress=progress):
        pipelines = candidate.placement.pipelines
        blocks = [memory.kv_blocks(pipeline, pipelines) for pipeline in pipelines]
        if min(blocks) * options.cost.block_tokens >= longest:
            held.append(candidate)
    if not held:
        raise InputError(f"no placement of {model.name} on {cluster.name} holds a request of {longest} tokens")
    return assemble(held, memory, lengths, options)


def assemble(
    candidates: Sequence[Candidate], memory: CardMemory, lengths: Lengths, options: LadderOptions
) -> PlannedLadder:
    """Return the ladder of candidates: those that carry more than any with as few cards, KV shared where they meet."""
    alone = _ladder([(one.name, _plain(one.placement)) for one in candidates], memory, lengths, options, None)
    gaps = {one.name: one.gap for one in candidates}
    kept = []
    carried = 0.0
    for level in sorted(alone.levels, key=lambda one: (len(one.cards), -one.rate_per_s)):
        if level.rate_per_s >= carried * options.least_step:
            kept.append(level)
            carried = level.rate_per_s
    placed = [(level.name, tuple(alone.servers[place].pipeline for place in level.servers)) for level in kept]
    sets = memory.resident_sets([pipelines for _, pipelines in placed])
    final = _ladder(placed, memory, lengths, options, sets)
    order = [next(i for i, (name, _) in enumerate(placed) if name == level.name) for level in final.levels]
    place = {old: new for new, old in enumerate(order)}
    found = tuple(tuple(sorted(place[old] for old in one if old in place)) for one in sets)
    return PlannedLadder(
        final, memory, tuple(one for one in found if one), tuple(gaps[one.name] for one in final.levels)
    )


def _plain(placement: Placement) -> tuple[Pipeline, ...]:
    """Pipelines without their batch size, which the scheduler has no use for."""
    return tuple(replace(pipeline, batch_size=1) for pipeline in placement.pipelines)


def _ladder(
    placed: Sequence[tuple[str, tuple[Pipeline, ...]]],
    memory: CardMemory,
    lengths: Lengths,
    options: LadderOptions,
    resident_sets: Sequence[Sequence[int]] | None,
) -> Ladder:
    """Return the ladder of named pipelines, KV of each as its level, or the resident sets it's in, leave it."""
    sets = resident_sets or [(index,) for index in range(len(placed))]
    unions = [tuple(dict.fromkeys(pipeline for index in one for pipeline in placed[index][1])) for one in sets]
    numbers: dict[Pipeline, int] = {}
    for _, pipelines in placed:
        for pipeline in pipelines:
            numbers.setdefault(pipeline, len(numbers))
    servers = []
    for pipeline in numbers:
        blocks = min(memory.kv_blocks(pipeline, union) for union in unions if pipeline in union)
        clock = PipelineClock.of(memory.cluster, memory.model, pipeline)
        servers.append(Server(pipeline, limits_of(pipeline, blocks, memory.model, options), clock))
    levels = [(name, [numbers[pipeline] for pipeline in pipelines]) for name, pipelines in placed]
    return Ladder.of(servers, levels, lengths)


def limits_of(pipeline: Pipeline, blocks: int, model: ModelSpec, options: LadderOptions) -> PipelineLimits:
    """Return what a pipeline can hold with so many KV blocks."""
    lanes = pipeline.num_micro_batches
    return PipelineLimits(
        lanes, max(options.max_rows, lanes), blocks, options.cost.block_tokens, options.max_chunk_tokens,
        model.max_position,
    )  # fmt: skip
