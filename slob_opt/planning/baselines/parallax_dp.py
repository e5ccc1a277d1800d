"""Devices grouped into as many pipelines with as few stages as possible, layers filled by speed."""

from __future__ import annotations

from collections.abc import Iterator

from slob_opt.cost.table import TICK_S, CostTable
from slob_opt.planning.baselines.fixed_split import Family, FixedSplit, shape_grid, solve_families, whole_devices
from slob_opt.planning.baselines.petals_greedy import most_layers
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import SolveLimits, SolveResult
from slob_opt.problem.placement import Placement

BEAM = 200
"""States kept after each device; chosen, enough to be exact on the instances of this project's tests."""

_Groups = tuple[tuple[int, ...], ...]


class ParallaxDpPlanner:
    """For each number of pipelines the grouping with the fewest stages, by dynamic programming over devices.

    Devices come in order of falling capacity (layers that fit memory); a state is the sorted tuple of layers that each
    pipeline still lacks. Inside a pipeline layers are water-filled: in proportion to speed, no device above its memory.

    References
    ----------
    Tong et al. (2025), "Parallax: Efficient LLM Inference Service over Decentralized Environment", phase 1 (model
    allocation: dynamic programming over residual layers, water-filling). Deviations: the number of pipelines is the
    one that is best by this project's objective instead of the paper's score; at most :data:`BEAM` states are kept per
    device; regions are ignored; memory is reserved for a grid of sequences in flight, the best result counts.
    """

    is_baseline = True

    @property
    def name(self) -> str:
        """Name in tables and files."""
        return "parallax-dp"

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the best grouping; the incumbent is ignored."""
        return solve_families(self.name, instance, _families(instance), limits)


def fewest_stages(capacity: dict[int, int], num_layers: int, num_pipelines: int) -> _Groups | None:
    """Return groups of devices, one a pipeline, that hold the model each and have the fewest members in total.

    Parameters
    ----------
    capacity
        Layers that each device can hold.
    num_layers
        L.
    num_pipelines
        Groups to form.

    Examples
    --------
    >>> fewest_stages({0: 6, 1: 5, 2: 4, 3: 3}, 8, 2)
    ((0, 3), (1, 2))
    """
    # (layers still lacking of each pipeline, in falling order) -> (stages so far, members of each pipeline)
    empty: _Groups = ((),) * num_pipelines
    states: dict[tuple[int, ...], tuple[int, _Groups]] = {(num_layers,) * num_pipelines: (0, empty)}
    for device in sorted(capacity, key=lambda d: (-capacity[d], d)):
        grown = dict(states)
        for lacking, (used, groups) in states.items():
            for index, rest in enumerate(lacking):
                if rest == 0 or (index and rest == lacking[index - 1]):
                    continue
                pairs = list(zip(lacking, groups, strict=True))
                pairs[index] = (max(0, rest - capacity[device]), (*groups[index], device))
                pairs.sort(key=lambda pair: (-pair[0], pair[1]))
                key = tuple(pair[0] for pair in pairs)
                if key not in grown or grown[key][0] > used + 1:
                    grown[key] = used + 1, tuple(pair[1] for pair in pairs)
        kept = sorted(grown.items(), key=lambda item: (sum(item[0]), item[1][0], item[0]))[:BEAM]
        states = dict(kept)
    done = states.get((0,) * num_pipelines)
    return None if done is None else tuple(sorted(done[1]))


def water_fill(speeds: list[float], caps: list[int], num_layers: int) -> list[int] | None:
    """Return layers in proportion to speed with no entry above its cap, each at least one; ``None`` when impossible.

    Examples
    --------
    >>> water_fill([3.0, 1.0], [5, 9], 8)
    [5, 3]
    """
    if sum(caps) < num_layers or min(caps) < 1 or len(caps) > num_layers:
        return None
    counts = [1] * len(caps)
    for _ in range(num_layers - len(caps)):
        # The next layer goes where it is done soonest; that rounds the water level to whole layers.
        open_ = [i for i in range(len(caps)) if counts[i] < caps[i]]
        chosen = min(open_, key=lambda i: ((counts[i] + 1) / speeds[i], i))
        counts[chosen] += 1
    return counts


def _families(instance: PlacementInstance) -> Iterator[Family]:
    """Groupings for each number of pipelines and each distinct set of capacities."""
    table, seen = instance.table, set()
    devices = whole_devices(table)
    for row, sequences in shape_grid(instance):
        capacity = {d: most_layers(table, row, d, sequences) for d in devices}
        if tuple(capacity.values()) in seen:
            continue
        seen.add(tuple(capacity.values()))
        useful = {d: n for d, n in capacity.items() if n > 0}
        most = min(len(useful), sum(useful.values()) // table.num_layers)
        for num_pipelines in range(1, (most if instance.is_throughput else min(most, 1)) + 1):
            groups = fewest_stages(useful, table.num_layers, num_pipelines)
            if groups is None:
                break
            splits = [_filled(table, row, sequences, group, useful) for group in groups]
            if all(split is not None for split in splits):
                yield tuple(split for split in splits if split is not None)


def _filled(
    table: CostTable, row: int, sequences: int, group: tuple[int, ...], capacity: dict[int, int]
) -> FixedSplit | None:
    """The group as a pipeline, fastest device first; ends hold embedding and head and so fewer layers."""
    layer_s = {d: max(float(table.layer_s[row, table.device_class[d]].mean()), TICK_S) for d in group}
    order = sorted(group, key=lambda d: (layer_s[d], d))
    caps = [capacity[d] for d in order]
    for position, beside in ((0, table.embed_bytes), (-1, table.head_bytes[row])):
        c = int(table.device_class[order[position]])
        each = max(1, (int(table.weight_bytes[c].sum()) + sequences * int(table.kv_bytes[c].sum())) // table.num_layers)
        caps[position] -= -(-int(beside[c]) // each)
    counts = water_fill([1 / layer_s[d] for d in order], caps, table.num_layers)
    return None if counts is None else FixedSplit(tuple(order), tuple(counts))
