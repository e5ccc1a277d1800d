"""From sets of blocks to pipelines on actual devices; see :mod:`slob_opt.planning.node_blocks`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slob_opt.cost.table import IntArray
from slob_opt.planning.block_rates import SPLIT, BlockKernel, BlockRates
from slob_opt.planning.groups import shape_costs
from slob_opt.planning.node_blocks import NodeKind
from slob_opt.planning.split_order import layers_in_order
from slob_opt.problem.placement import Pipeline, Placement, Stage

Width = tuple[int, ...]
"""Cards that a block takes from each pool of its node."""


@dataclass(frozen=True, slots=True)
class BlockChoice:
    """One pipeline by blocks.

    Attributes
    ----------
    pattern
        Index into the kernel's patterns.
    shape
        Index into the instance's shapes.
    first, last, home
        As in :class:`slob_opt.planning.block_rates.BlockRates`.
    interval
        Ticks that the pattern reaches.
    """

    pattern: int
    shape: int
    first: int
    last: int
    home: int
    interval: float


def choice_of(rates: BlockRates, entry: int, pattern: int) -> BlockChoice:
    """Return entry `entry` of a rate table, which belongs to a pattern, as a choice."""
    return BlockChoice(
        pattern, int(rates.shape[entry]), int(rates.first[entry]), int(rates.last[entry]), int(rates.home[entry]),
        float(rates.interval[entry]),
    )  # fmt: skip


def best_choice(kernel: BlockKernel) -> BlockChoice | None:
    """Return the pattern of the highest rate (for one shape: of the shortest interval); ``None`` when none works."""
    rates = kernel.rates(np.zeros(kernel.counts.shape[0]))
    best = int(np.argmax(rates.rate))
    return None if rates.shape[best] < 0 else choice_of(rates, best, best)


def width_of(kind: NodeKind, counts: Sequence[int]) -> Width:
    """Return the cards that a block takes from each pool of a node."""
    return tuple(int(n) for n in kind.usage @ np.array(counts, np.int64))


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of a pipeline: the groups of its devices, and where it lies (position among the nodes of its kind)."""

    pipeline: int
    kind: int
    counts: tuple[int, ...]
    node: int


def realise_blocks(
    kernel: BlockKernel, choices: Sequence[BlockChoice], cuts: Sequence[Sequence[Sequence[Width]]] | None = None
) -> Placement:
    """Return a placement of the chosen pipelines, each at least as quick as its choice says.

    Parameters
    ----------
    cuts
        For each kind and each of its nodes the widths it is cut into; ``None`` (with one pipeline) gives each block a
        node of its own. Two blocks of one pipeline may come to lie on one node, which only makes hops quicker.
    """
    blocks = _assign(kernel, choices, cuts)
    devices = _pick_devices(kernel, blocks)
    return Placement(tuple(_pipeline(kernel, choice, p, blocks, devices) for p, choice in enumerate(choices)))


def _assign(
    kernel: BlockKernel, choices: Sequence[BlockChoice], cuts: Sequence[Sequence[Sequence[Width]]] | None
) -> list[_Block]:
    """Give each block a node with a free part of its width; within a pipeline a node of its own where there is one."""
    kinds = kernel.structure.kinds
    free: list[list[list[Width]]] | None = None
    if cuts is not None:
        free = [[list(widths) for widths in nodes] for nodes in cuts]
    found: list[_Block] = []
    for p, choice in enumerate(choices):
        taken: set[tuple[int, int]] = set()
        for b in np.flatnonzero(kernel.patterns.used[choice.pattern]).tolist():
            kind, counts = kernel.patterns.blocks[b]
            width = width_of(kinds[kind], counts)
            for _ in range(int(kernel.patterns.used[choice.pattern, b])):
                if free is None:
                    node = sum(k == kind for k, _ in taken)
                else:
                    fits = [n for n, widths in enumerate(free[kind]) if width in widths]
                    node = next((n for n in fits if (kind, n) not in taken), fits[0] if fits else -1)
                    assert node >= 0, "cuts make fewer blocks than pipelines use"
                    free[kind][node].remove(width)
                taken.add((kind, node))
                found.append(_Block(p, kind, counts, node))
    return found


def _pick_devices(kernel: BlockKernel, blocks: Sequence[_Block]) -> list[dict[int, list[int]]]:
    """Return the planning devices of each block by group, largest groups of cards first."""
    structure, table = kernel.structure, kernel.instance.table
    wanted = []
    for index, block in enumerate(blocks):
        kind = structure.kinds[block.kind]
        for group, count in zip(kind.groups, block.counts, strict=True):
            size = len(table.device_cards[structure.devices[group][block.node][0]])
            wanted += [(size, index, group)] * count
    picked: list[dict[int, list[int]]] = [{} for _ in blocks]
    used: set[int] = set()
    for _, index, group in sorted(wanted, key=lambda item: (-item[0], item[1], item[2])):
        members = structure.devices[group][blocks[index].node]
        device = next(d for d in members if not used.intersection(table.device_cards[d]))
        used.update(table.device_cards[device])
        picked[index].setdefault(group, []).append(device)
    return picked


def _pipeline(
    kernel: BlockKernel, choice: BlockChoice, p: int, blocks: Sequence[_Block], devices: list[dict[int, list[int]]]
) -> Pipeline:
    """Put the devices of a pipeline's blocks in order and split the layers."""
    own = [{g: list(d) for g, d in devices[i].items()} for i, block in enumerate(blocks) if block.pipeline == p]
    order = _in_order(own, choice)
    instance = kernel.instance
    table = instance.table
    costs = shape_costs(instance, kernel.structure.classes, instance.shapes()[choice.shape])
    layers = layers_in_order(costs, tuple(g for g, _ in order), table.num_layers, choice.interval)
    bounds: IntArray = np.cumsum([0, *layers])
    stages = tuple(
        Stage(table.device_cards[device], int(bounds[i]), int(bounds[i + 1])) for i, (_, device) in enumerate(order)
    )
    return Pipeline(stages, costs.num_micro_batches, costs.batch_size)


def _in_order(blocks: list[dict[int, list[int]]], choice: BlockChoice) -> list[tuple[int, int]]:
    """Return (group, device) of each stage: each block in one go, but a home block is left and come back to."""
    if sum(len(d) for block in blocks for d in block.values()) == 1:
        return [(g, d) for block in blocks for g, found in block.items() for d in found]
    need = 2 if choice.first == choice.last else 1
    start = end = -1
    for i, block in enumerate(blocks):
        for j, other in enumerate(blocks):
            if choice.home == SPLIT:
                suits = i != j and choice.first in block and choice.last in other
            else:
                suits = i == j and len(block.get(choice.first, ())) >= need and choice.last in block
            if suits and start < 0:
                start, end = i, j
    assert start >= 0, "no blocks hold the first and the last stage as chosen"
    first = (choice.first, blocks[start][choice.first].pop(0))
    last = (choice.last, blocks[end][choice.last].pop(0))
    middle = [i for i in range(len(blocks)) if i not in (start, end)]
    ordered = [start, *middle] if start == end else [start, *middle, end]
    inner = [(g, d) for i in ordered for g, found in blocks[i].items() for d in found]
    return [first, *inner, last]
