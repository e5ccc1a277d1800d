"""Closed-form bounds on what any plan can reach, and the proof that memory is too small for one.

All of them let go of everything but the devices' own limits, so they hold whatever a planner does. A certificate
recomputes them by the formula's name (:func:`recompute_bound`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slob_opt.cost.table import CostTable, FloatArray, IntArray
from slob_opt.errors import InputError
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective
from slob_opt.planning.witness import CapacityWitness, MemoryWitness

CAPACITY = "capacity"
"""Formula of :func:`throughput_bound`."""

FILL = "fill"
"""Formula of :func:`interval_bound`."""

_ROUNDING = 1e-12
"""Relative allowance for float rounding; sums here have at most a few thousand terms of relative error 1e-16."""


def capacity_bound(rates: Sequence[npt.ArrayLike], num_layers: int) -> float:
    """Return an upper limit on the rate of any placement, tokens/s: the largest F with
    ``sum_i max_k k * min(T_i(k), F) >= num_layers * F``.

    A token passes `num_layers` layers, device i contributes at most ``k * T_i(k)`` layer passes a second when it holds
    k layers, and no more than F tokens/s come by.

    Parameters
    ----------
    rates
        One array for each device, (most layers it can hold,) float64, tokens/s: entry ``k - 1`` is T(k).
    num_layers
        L.

    Examples
    --------
    Two devices that make 6 and 3 tokens/s with one layer, half of it with two layers: (6 + 3) / 2.

    >>> round(capacity_bound([[6.0, 3.0], [3.0, 1.5]], 2), 9)
    4.5
    """  # noqa: D205
    kinds = Counter(tuple(np.asarray(r, dtype=np.float64)[:num_layers].tolist()) for r in rates)
    cards = [(count, ((np.array(kind), 1),)) for kind, count in kinds.items()]
    return _largest_rate(cards, num_layers)


def simple_capacity_bound(rates: Sequence[npt.ArrayLike], num_layers: int) -> float:
    """Return the looser limit ``sum_i max_k k * T_i(k) / num_layers``, tokens/s, that others report for comparison.

    Parameters
    ----------
    rates, num_layers
        As for :func:`capacity_bound`.
    """
    tables = [np.asarray(r, dtype=np.float64)[:num_layers] for r in rates]
    return sum(float(np.max(t * np.arange(1, t.size + 1), initial=0.0)) for t in tables) / num_layers


_Options = tuple[tuple[FloatArray, int], ...]
"""What a card can be part of: rates T(k) of a planning device, and the number of cards it takes."""


def _largest_rate(cards: Sequence[tuple[int, _Options]], num_layers: int) -> float:
    """Largest F with ``sum over cards of the best option's max_k k * min(T(k), F) / cards >= num_layers * F``."""

    def passes(rate: float) -> float:
        return sum(
            count
            * max(
                float(np.max(np.minimum(t, rate) * np.arange(1, t.size + 1), initial=0.0)) / size for t, size in options
            )
            for count, options in cards
        )

    # passes(F) / F never grows with F, so F works below the answer and nowhere above it. Both sides can be equal over
    # a whole range of F (a chain that is optimal), hence the allowance: it may only raise the bound.
    low, high = 0.0, passes(math.inf) / num_layers * (1 + _ROUNDING)
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if passes(middle) * (1 + _ROUNDING) >= num_layers * middle else (low, middle)
    return high * (1 + _ROUNDING)


def _card_options(table: CostTable) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """(number of such cards, ((class, cards of the planning device), ...)) for every kind of card."""
    options: dict[int, set[tuple[int, int]]] = {}
    for device, cards in enumerate(table.device_cards):
        for card in cards:
            options.setdefault(card, set()).add((int(table.device_class[device]), len(cards)))
    kinds = Counter(tuple(sorted(found)) for found in options.values())
    return [(count, kind) for kind, count in sorted(kinds.items())]


def _shortest_s(table: CostTable, row: int, c: int) -> FloatArray:
    """(L,) seconds: entry ``n - 1`` is the shortest time of n contiguous layers on class c."""
    prefix = table.layer_prefix_s[row, c]
    return np.array([np.min(prefix[n:] - prefix[:-n]) for n in range(1, prefix.size)])


def _most_sequences(table: CostTable, row: int, c: int) -> IntArray:
    """(L,) int64: the most sequences that fit beside n contiguous layers on class c; -1 when the weights don't fit."""
    free = int(table.capacity_bytes[c]) - int(table.workspace_bytes[row, c])
    weights, kv = table.weight_prefix_bytes[c], table.kv_prefix_bytes[c]
    most = np.full(table.num_layers, -1, np.int64)
    for n in range(1, table.num_layers + 1):
        left = free - (weights[n:] - weights[:-n])
        each = kv[n:] - kv[:-n]
        fits = np.where(each > 0, left // np.maximum(each, 1), 2**40)
        most[n - 1] = np.max(np.where(left >= 0, fits, -1))
    return most


def _shortest_hops(table: CostTable, row: int) -> tuple[float, float, float]:
    """Smallest hop, hop back and link occupancy between two devices, seconds; ``inf`` with one device."""
    used = np.unique(table.link_class[table.link_class >= 0])
    if not used.size:
        return math.inf, math.inf, math.inf
    return (
        float(np.min(table.hop_s[row, used])),
        float(np.min(table.return_s[row, used])),
        float(np.min(table.occupancy_s[row, used])),
    )


def throughput_bound(instance: PlacementInstance) -> float:
    """Return an upper limit on the tokens/s of any disjoint pipelines; 0.0 when no shape fits.

    The capacity bound with ``T(n)`` = the best rate of a pipeline in which the device has n layers: at most
    ``b / stage time``, and at most ``K * b`` sequences, as many as the device's memory holds, in the shortest
    conceivable time of a token through all layers.
    """
    table = instance.table
    rates = [np.zeros(table.num_layers) for _ in range(table.num_classes)]
    for row, b in enumerate(table.batch_sizes):
        depths = [k for r, k, _ in instance.shapes() if r == row]
        if row == 0 or not depths:
            continue
        for c, rate in enumerate(_class_rates(instance, row, b, max(depths))):
            rates[c] = np.maximum(rates[c], rate)
    cards = [(count, tuple((rates[c], size) for c, size in kind)) for count, kind in _card_options(table)]
    return _largest_rate(cards, table.num_layers)


def _class_rates(instance: PlacementInstance, row: int, b: int, max_k: int) -> list[FloatArray]:
    """For each class (L,) tokens/s: the most that a pipeline makes in which such a device has n layers."""
    table = instance.table
    hop_s, return_s, _ = _shortest_hops(table, row)
    stage_s = [table.fixed_s[row, c] + _shortest_s(table, row, c) for c in range(table.num_classes)]
    most_k = [np.minimum(_most_sequences(table, row, c) // b, max_k) for c in range(table.num_classes)]
    count = np.arange(1, table.num_layers + 1)
    # Seconds that a layer costs at least in a further stage, hop included; each such stage has one hop of its own.
    others = [
        float(np.min(np.where(most_k[c] >= 1, (stage_s[c] + hop_s) / count, np.inf))) for c in range(table.num_classes)
    ]
    ends_s = float(np.min(table.embed_s[row]) + np.min(table.head_s[row]))
    rest = table.num_layers - count
    rest_s = np.where(rest > 0, np.where(rest > 0, rest, 1) * min(others) + return_s, 0.0)
    found = []
    for c in range(table.num_classes):
        token_s = (stage_s[c] + rest_s + ends_s) * (1 - _ROUNDING)
        k = most_k[c]
        is_allowed = (k >= 1) & np.isfinite(token_s)
        if instance.max_interval_s is not None:
            is_allowed &= (token_s <= instance.max_interval_s) & (stage_s[c] <= instance.max_interval_s)
            with np.errstate(divide="ignore"):
                k = np.minimum(k, np.floor(instance.max_interval_s / stage_s[c] * (1 + _ROUNDING)))
        interval_s = np.where(is_allowed, np.maximum(token_s, k * stage_s[c]), np.inf)
        found.append(np.where(is_allowed, k * b / np.maximum(interval_s, 2.0**-60), 0.0))
    return found


def interval_bound(instance: PlacementInstance) -> float | None:
    """Return a lower limit on the token interval of any pipeline, seconds; ``None`` when memory allows none at all.

    Under an interval I a device takes at most as many layers as fit its memory and ``I / K`` seconds; a layer on it
    costs at least the smallest (stage + hop) / layers. The cheapest fill of all layers, as fractions, must be within I.
    """
    table, (row, k, _) = instance.table, instance.shapes()[0]
    hop_s, return_s, busy_s = _shortest_hops(table, row)
    count = np.arange(1, table.num_layers + 1)
    stage_s = [table.fixed_s[row, c] + _shortest_s(table, row, c) for c in range(table.num_classes)]
    fits = [_most_sequences(table, row, c) >= k for c in range(table.num_classes)]
    cards = _card_options(table)
    alone_s = min((_alone_s(table, row, c, k) for c in range(table.num_classes)), default=math.inf)
    ends_s = (
        float(np.min(table.embed_s[row]) + np.min(table.head_s[row])) + return_s - hop_s if hop_s < math.inf else 0.0
    )

    def is_possible(interval_s: float) -> bool:
        if k * alone_s <= interval_s:
            return True
        if k * busy_s > interval_s:
            return False
        supply = []
        for c in range(table.num_classes):
            is_allowed = fits[c] & (k * stage_s[c] <= interval_s)
            most = int(np.max(np.where(is_allowed, count, 0)))
            supply.append((most, float(np.min(np.where(is_allowed, (stage_s[c] + hop_s) / count, np.inf)))))
        offers = sorted(
            (min(supply[c][1] for c, _ in kind), number * max(supply[c][0] / size for c, size in kind))
            for number, kind in cards
        )
        rest, total_s = float(table.num_layers), ends_s
        for each_s, layers in offers:
            taken = min(rest, layers)
            total_s += taken * each_s if taken > 0 else 0.0
            rest -= taken
        return rest <= _ROUNDING * table.num_layers and total_s <= interval_s * (1 + _ROUNDING)

    if not is_possible(2.0**62):
        return None
    low, high = 0.0, 2.0**-20
    while not is_possible(high):
        low, high = high, 2 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if is_possible(middle) else (middle, high)
    return low * (1 - _ROUNDING)


def _alone_s(table: CostTable, row: int, c: int, sequences: int) -> float:
    """Time of all layers on one device of class c, seconds; ``inf`` when its memory is too small."""
    device = int(np.argmax(table.device_class == c))
    held = sum(table.stage_memory(row, device, 0, table.num_layers, sequences).values())
    return table.stage_s(row, device, 0, table.num_layers) if held <= int(table.capacity_bytes[c]) else math.inf


def recompute_bound(instance: PlacementInstance, formula: str) -> float | None:
    """Return the bound of a named formula on the minimised scale; ``None`` when it says that no plan exists.

    Raises
    ------
    InputError
        When the formula isn't known or is not for this objective.
    """
    if formula == FILL and isinstance(instance.objective, IntervalObjective):
        return interval_bound(instance)
    if formula == CAPACITY and instance.is_throughput:
        return -throughput_bound(instance)
    raise InputError(f"no bound formula {formula!r} for objective {instance.objective.name}")


def closed_form_bound(instance: PlacementInstance) -> tuple[float, CapacityWitness] | None:
    """Return the closed-form bound on the minimised scale with its witness; ``None`` when no plan exists at all.

    Examples
    --------
    >>> from slob_opt.cost.direct import DirectClass, direct_table
    >>> table = direct_table([DirectClass("a", 2, 20, 1.0)], 4, layer_bytes=10)
    >>> bound, witness = closed_form_bound(PlacementInstance(table, IntervalObjective(1)))
    >>> round(bound, 6), witness.formula
    (4.0, 'fill')
    """
    formula = CAPACITY if instance.is_throughput else FILL
    bound = recompute_bound(instance, formula)
    if bound is None or bound == 0.0:
        return None
    return bound, CapacityWitness(formula)


def memory_shortage(instance: PlacementInstance) -> MemoryWitness | None:
    """Return the proof that no plan fits, or ``None`` when total memory doesn't exclude one.

    Whatever the plan, one pipeline holds every layer with the KV of the fewest sequences. Two sums are compared, for
    the cheapest shape: all bytes with all that devices have beside their workspace; and the layers alone with the
    largest run of layers that fits each device (a device can't hold half a layer).
    """
    rows: dict[int, int] = {}
    for row, k, b in instance.shapes():
        rows[row] = min(rows.get(row, k * b), k * b)
    worst = [_shortage(instance.table, row, sequences) for row, sequences in sorted(rows.items())]
    if not worst or any(found is None for found in worst):
        return None
    return min((w for w in worst if w is not None), key=lambda w: w.need_bytes - w.have_bytes)


def _shortage(table: CostTable, row: int, sequences: int) -> MemoryWitness | None:
    """Shortage of one shape; a layer is measured by the fewest bytes any class needs for it, over all its cards."""
    num_cards = np.array(
        [len(table.device_cards[int(np.argmax(table.device_class == c))]) for c in range(table.num_classes)]
    )
    held = (table.weight_bytes + sequences * table.kv_bytes) * num_cards[:, None]
    layer = held.min(axis=0)
    measure = np.concatenate([[0], np.cumsum(layer)])
    free = table.capacity_bytes - table.workspace_bytes[row]
    runs = np.zeros(table.num_classes, np.int64)
    for c in range(table.num_classes):
        prefix = np.concatenate([[0], np.cumsum(held[c])])
        # For each first layer the furthest end that fits.
        ends = np.searchsorted(prefix, prefix + max(0, int(free[c])) * num_cards[c], side="right") - 1
        runs[c] = np.max(measure[ends] - measure) if free[c] >= 0 else 0
    # Embedding and head on one device (a tied tensor once), or on two.
    embed, head = table.embed_bytes * num_cards, table.head_bytes[row] * num_cards
    together = embed + head - table.tied_saving_bytes * num_cards
    beside = max(0, min(int(together.min()), int(embed.min() + head.min())))
    need_all, need_layers = int(layer.sum()) + beside, int(layer.sum())
    have_all = have_layers = 0
    for count, kind in _card_options(table):
        have_all += math.ceil(count * max(max(0, int(free[c])) for c, _ in kind))
        have_layers += math.ceil(count * max(int(runs[c]) / size for c, size in kind))
    found = [
        MemoryWitness(need, have) for need, have in ((need_all, have_all), (need_layers, have_layers)) if need > have
    ]
    return max(found, key=lambda w: w.need_bytes - w.have_bytes) if found else None
