"""Why an instance has no plan, and what would repair it, in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from slob_opt.cost.table import CostTable, IntArray
from slob_opt.planning.evaluate import format_gib
from slob_opt.planning.instance import PlacementInstance

MAX_STATES = 3_000
"""Most device counts looked at in one memory check of unequal layers; above, sums of bytes are compared. Chosen."""

STANDARD_WEIGHT_BITS = (8, 4)
"""Bits per weight that checkpoints are commonly quantised to, widest first."""

_STEP_BYTES = 2**20
"""Resolution of "how much more memory": 1 MiB."""


@dataclass(frozen=True)
class _Memory:
    """The memory side of one row of a table: per class (C,) bytes a card, counts, and (C, L) bytes of layers."""

    counts: tuple[int, ...]
    free: tuple[int, ...]
    weights: IntArray
    kv: IntArray
    embed: tuple[int, ...]
    head: tuple[int, ...]
    tied: tuple[int, ...]

    @property
    def has_identical_layers(self) -> bool:
        """Whether a count of layers says it all."""
        return bool(np.all(self.weights == self.weights[:, :1]) and np.all(self.kv == self.kv[:, :1]))

    def layers(self, sequences: int) -> IntArray:
        """(C, L + 1) int64, bytes: sum of the first layers with the KV of a number of sequences."""
        size = self.weights + sequences * self.kv
        return np.concatenate([np.zeros((size.shape[0], 1), np.int64), np.cumsum(size, axis=1)], axis=1)


def largest_in_flight(table: CostTable, row: int, at_most: int) -> int:
    """Return the largest number of sequences, up to `at_most`, with which some single pipeline fits; 0 for none.

    Exact as long as devices share no cards and either layers are identical or there are at most :data:`MAX_STATES`
    counts of devices per class; else an upper limit.
    """
    memory = _memory(table, row)
    return _largest(lambda q: _fits(table, row, memory, q), at_most)


def explain_infeasible(instance: PlacementInstance, context_tokens: int | None = None) -> str:
    """Return the smallest conflict of an instance without a plan, and what would repair it, in one or two sentences.

    Parameters
    ----------
    instance
        The instance that has no plan.
    context_tokens
        Tokens of KV per sequence that the table was built with, so that "less context" is told in tokens; ``None``
        tells it as a share.

    Examples
    --------
    >>> from slob_opt.cost.direct import DirectClass, direct_table
    >>> from slob_opt.planning.objectives import IntervalObjective
    >>> table = direct_table([DirectClass("a", 2, 2 * 2**30, 0.1)], 5, layer_bytes=2**30)
    >>> text = explain_infeasible(PlacementInstance(table, IntervalObjective(1)))
    >>> text[text.index("it needs") :]
    'it needs 1.00 GiB more on a card of class a, or 8-bit weights'
    """
    shapes = instance.shapes()
    if not shapes:
        return "no batch size of the table's grid is within max_in_flight; allow more sequences in flight"
    # The easiest shape: fewest sequences; among those the row with the smallest workspace (small batches come first).
    asked, row = min((k * b, row) for row, k, b in shapes)
    table, memory = instance.table, _memory(instance.table, row)
    if _fits(table, row, memory, asked):
        return _explain_time(instance)
    room = _room_by_card(table, memory)
    free = sum(room.values())
    weights, kv = int(memory.weights.sum(axis=1).min()), asked * int(memory.kv.sum(axis=1).min())
    ends = min(e + h - t for e, h, t in zip(memory.embed, memory.head, memory.tied, strict=True))
    text = (
        f"the model needs {format_gib(weights + kv + ends)} for {_number(asked, 'sequence')} in flight (weights "
        f"{format_gib(weights)}, KV {format_gib(kv)}, ends {format_gib(ends)}) and the "
        f"{_number(len(room), 'card')} offer{'s' if len(room) == 1 else ''} {format_gib(free)}"
    )
    if weights + kv + ends <= free:
        text += ", yet no cut into whole layers fits them"
    repairs = _repairs(table, row, memory, asked, context_tokens)
    if repairs:
        text += "; it needs " + ", or ".join(repairs)
    most = _largest(lambda q: _fits(table, row, memory, q), asked - 1)
    if most:
        text += f"; the largest feasible batch is {_number(most, 'sequence')} in flight"
    return text


def _largest(is_enough: Callable[[int], bool], at_most: int) -> int:
    """Largest number from 1 to `at_most` that passes, when all smaller ones pass too; 0 for none."""
    low, high = 0, max(0, at_most) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_enough(middle) else (low, middle)
    return low


def _repairs(table: CostTable, row: int, memory: _Memory, sequences: int, context_tokens: int | None) -> list[str]:
    """What would make the pipeline fit, each on its own."""
    found = []
    extra = _extra_bytes(memory, sequences) if _is_exact(table, memory) else None
    if extra is not None:
        found.append(f"{format_gib(extra[0])} more on a card of class {table.class_names[extra[1]]}")

    def is_enough(percent: int) -> bool:
        return _fits(table, row, replace(memory, kv=memory.kv * percent // 100), sequences)

    kept = _largest(is_enough, 99)
    if np.any(memory.kv) and (kept or is_enough(0)):
        if context_tokens is None:
            found.append(f"{100 - kept} % less context")
        else:
            tokens = context_tokens

            def is_short_enough(length: int) -> bool:
                return _fits(table, row, replace(memory, kv=-(-memory.kv * length // tokens)), sequences)

            found.append(f"{tokens - _largest(is_short_enough, tokens - 1):,} tokens less context")
    bits = _widest_weight_bits(table, row, sequences)
    if bits is not None:
        found.append(f"{bits}-bit weights")
    return found


def _widest_weight_bits(table: CostTable, row: int, sequences: int) -> int | None:
    """Widest standard bits per weight, below today's, with which the pipeline fits; ``None`` without one."""
    for bits in STANDARD_WEIGHT_BITS:
        lighter = table.with_weight_bits(bits) if table.weight_bits is not None and bits < table.weight_bits else None
        if lighter is not None and _fits(lighter, row, _memory(lighter, row), sequences):
            return bits
    return None


def _explain_time(instance: PlacementInstance) -> str:
    """Text for an instance whose memory suffices."""
    if instance.max_interval_s is None:
        return "memory suffices for a pipeline; nothing known forbids a plan"
    return (
        f"memory suffices, but no pipeline that fits has a token interval of at most {instance.max_interval_s:g} s; "
        "allow a longer max_interval_s, a smaller batch or faster links"
    )


def _memory(table: CostTable, row: int) -> _Memory:
    """Memory numbers of a table row, over all cards of a planning device."""
    classes = range(table.num_classes)
    sizes = [len(table.device_cards[int(np.argmax(table.device_class == c))]) for c in classes]
    cards = np.array(sizes, np.int64)

    def over_cards(values: IntArray) -> tuple[int, ...]:
        return tuple(int(v) for v in values * cards)

    return _Memory(
        tuple(int(np.sum(table.device_class == c)) for c in classes),
        over_cards(table.capacity_bytes - table.workspace_bytes[row]),
        table.weight_bytes * cards[:, None],
        table.kv_bytes * cards[:, None],
        over_cards(table.embed_bytes),
        over_cards(table.head_bytes[row]),
        over_cards(table.tied_saving_bytes),
    )


def _is_exact(table: CostTable, memory: _Memory) -> bool:
    """Whether the count program decides memory exactly for this table."""
    states = math.prod(n + 1 for n in memory.counts)
    return table.has_exclusive_devices and (memory.has_identical_layers or states <= MAX_STATES)


def _fits(table: CostTable, row: int, memory: _Memory, sequences: int) -> bool:
    """Whether one pipeline fits; where the count program doesn't apply, whether sums of bytes allow it."""
    if _is_exact(table, memory):
        return _holds_model(memory, sequences)
    need = int((memory.weights + sequences * memory.kv).min(axis=0).sum())
    ends = min(e + h - t for e, h, t in zip(memory.embed, memory.head, memory.tied, strict=True))
    return need + max(0, ends) <= sum(_room_by_card(table, memory).values())


def _room_by_card(table: CostTable, memory: _Memory) -> dict[int, int]:
    """Most bytes that each card offers, alone or in a group; a card in several groups counts once."""
    room = {card: 0 for cards in table.device_cards for card in cards}
    for device, cards in enumerate(table.device_cards):
        c = int(table.device_class[device])
        for card in cards:
            room[card] = max(room[card], memory.free[c] // len(cards))
    return room


def _number(count: int, noun: str) -> str:
    """Return ``1 card`` or ``4 cards``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _holds_model(memory: _Memory, sequences: int) -> bool:
    """Whether some order of some devices holds all layers."""
    check = _has_room if memory.has_identical_layers else _reaches_end
    return check(memory, sequences)


def _has_room(memory: _Memory, sequences: int) -> bool:
    """The same for identical layers: one device alone, or enough whole layers on all with some first and last one."""
    num_layers = memory.weights.shape[1]
    classes = [c for c, count in enumerate(memory.counts) if count]

    def room(c: int, beside: int) -> int:
        size = int(memory.weights[c, 0]) + sequences * int(memory.kv[c, 0])
        free = memory.free[c] - beside
        return 0 if free < 0 else (min(num_layers, free // size) if size else num_layers)

    if any(room(c, memory.embed[c] + memory.head[c] - memory.tied[c]) >= num_layers for c in classes):
        return True
    total = sum(memory.counts[c] * room(c, 0) for c in classes)
    for first, last in itertools.product(classes, repeat=2):
        if num_layers < 2 or (first == last and memory.counts[first] < 2):
            continue
        ends = room(first, memory.embed[first]), room(last, memory.head[last])
        if min(ends) >= 1 and total - room(first, 0) - room(last, 0) + sum(ends) >= num_layers:
            return True
    return False


def _reaches_end(memory: _Memory, sequences: int) -> bool:
    """Whether some order of some devices holds all layers: the furthest layer reached with each count per class.

    To have come further is never worse, as the next device then has a shorter run to the same end.
    """
    prefix = memory.layers(sequences)
    num_layers = prefix.shape[1] - 1
    reach: dict[tuple[int, ...], int] = {tuple(0 for _ in memory.counts): 0}
    for counts in itertools.product(*(range(n + 1) for n in memory.counts)):
        furthest = reach.get(counts, -1)
        for c, used in enumerate(counts):
            if not used:
                continue
            before = (*counts[:c], used - 1, *counts[c + 1 :])
            start = reach[before]
            room = memory.free[c] - (memory.embed[c] if start == 0 else 0)
            whole = memory.head[c] - (memory.tied[c] if start == 0 else 0)
            if room - whole >= int(prefix[c, -1] - prefix[c, start]):
                return True
            end = int(np.searchsorted(prefix[c], prefix[c, start] + room, side="right")) - 1 if room >= 0 else start
            furthest = max(furthest, start, min(end, num_layers - 1))
        reach[counts] = furthest
    return False


def _extra_bytes(memory: _Memory, sequences: int) -> tuple[int, int] | None:
    """Least extra memory (bytes, in whole MiB) on one card that makes the pipeline fit, and the card's class."""
    total = int(memory.layers(sequences)[:, -1].max()) + max(memory.embed) + max(memory.head)
    best: tuple[int, int] | None = None
    for c in range(len(memory.counts)):
        if memory.counts[c] == 0:
            continue

        def is_enough(steps: int, c: int = c) -> bool:
            counts = list(memory.counts)
            counts[c] -= 1
            grown = _Memory(
                (*counts, 1),
                (*memory.free, memory.free[c] + steps * _STEP_BYTES),
                np.concatenate([memory.weights, memory.weights[c : c + 1]]),
                np.concatenate([memory.kv, memory.kv[c : c + 1]]),
                (*memory.embed, memory.embed[c]),
                (*memory.head, memory.head[c]),
                (*memory.tied, memory.tied[c]),
            )
            return _holds_model(grown, sequences)

        low, high = 0, -(-(total - min(0, memory.free[c])) // _STEP_BYTES)
        if best is not None:
            high = min(high, best[0] // _STEP_BYTES - 1)
        if high <= low or not is_enough(high):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        best = high * _STEP_BYTES, c
    return best
