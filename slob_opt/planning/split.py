"""The best contiguous layer split of one pipeline whose devices and their order are given.

The interval of a pipeline is ``max(sum of stages + hops, K * max(longest stage, link occupancy))``. With a limit on
the longest stage the sum is minimised by filling (identical layers) or by a dynamic program over cuts (unequal layers);
the best interval follows by bisection over whole ticks, hence without any tolerance.

References
----------
Pinar, Tabak & Aykanat (2008), "One-dimensional partitioning for heterogeneous systems", section 4 (probe and bisect for
the bottleneck with a fixed order). Deviation: the probe minimises the sum of stages as well, since the token interval
has both a bottleneck and a sum term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from slob_opt.cost.table import TICK_S, CostTable, FloatArray, IntArray, to_ticks
from slob_opt.errors import InputError
from slob_opt.problem.placement import Pipeline, Stage

Probe = Callable[[int], tuple[int, tuple[int, ...]] | None]
"""Smallest sum of stages (ticks) and its counts, no stage being longer than the given number of ticks."""


def pipeline_of(
    table: CostTable, devices: Sequence[int], counts: Sequence[int], num_micro_batches: int = 1, batch_size: int = 1
) -> Pipeline:
    """Return the pipeline that gives ``counts[i]`` layers to planning device ``devices[i]``, in that order.

    Raises
    ------
    InputError
        When the counts are not positive or don't sum to the model's layers.

    Examples
    --------
    >>> from slob_opt.cost.direct import DirectClass, direct_table
    >>> table = direct_table([DirectClass("a", 2, 100, 0.5)], 4, layer_bytes=10)
    >>> [(s.cards, s.first, s.end) for s in pipeline_of(table, (1, 0), (3, 1)).stages]
    [((1,), 0, 3), ((0,), 3, 4)]
    """
    if len(devices) != len(counts):
        raise InputError(f"{len(counts)} layer counts for {len(devices)} devices, expected one each")
    if sum(counts) != table.num_layers:
        raise InputError(f"layer counts sum to {sum(counts)}, the model has {table.num_layers} layers")
    ends = np.cumsum(counts).tolist()
    stages = tuple(Stage(table.device_cards[d], end - n, end) for d, n, end in zip(devices, counts, ends, strict=True))
    return Pipeline(stages, num_micro_batches, batch_size)


def best_split(
    table: CostTable,
    row: int,
    devices: Sequence[int],
    num_micro_batches: int,
    sequences: int,
    hops_s: float,
    occupancy_s: float,
    upper: float | None = None,
) -> tuple[float, tuple[int, ...]] | None:
    """Return the smallest token interval and the layer counts that reach it, or ``None`` when there is no split.

    Each device gets at least one layer. The value is what :func:`slob_opt.planning.evaluate.report_pipeline` says of
    the returned split, to the last bit.

    Parameters
    ----------
    table
        Times and bytes.
    row
        Shape of an iteration.
    devices
        Planning devices in stage order.
    num_micro_batches
        K.
    sequences
        Sequences in flight whose KV every stage holds (K times b).
    hops_s
        Time of all hops and of the hop back, seconds, a multiple of a tick; 0 for a single stage.
    occupancy_s
        Largest time that a link or network card is busy in an iteration, seconds; 0 for a single stage.
    upper
        Splits whose interval is above this many seconds don't count; ``None`` sets no limit.

    Raises
    ------
    InputError
        When `hops_s` isn't a whole number of ticks or no device is given.

    Examples
    --------
    Five layers on devices that need 1 and 2 s a layer; with K = 4 the longest stage decides: 3 and 2 layers give
    max(7, 4 * 4) = 16 s, 4 and 1 give max(6, 4 * 4) = 16 s as well, and of the two the shorter sum is taken.

    >>> from slob_opt.cost.direct import DirectClass, direct_table
    >>> table = direct_table([DirectClass("a", 1, 50, 1.0), DirectClass("b", 1, 50, 2.0)], 5, layer_bytes=10)
    >>> best_split(table, 0, (0, 1), 4, 4, 0.0, 0.0)
    (16.0, (4, 1))
    """
    if not devices:
        raise InputError("a split needs at least one device")
    if len(devices) > table.num_layers:
        return None
    build = _filling_probe if table.has_identical_layers else _cutting_probe
    probe = build(table, row, devices, sequences)
    if probe is None:
        return None
    k, hops = num_micro_batches, to_ticks(hops_s)
    busy_s = k * occupancy_s
    low = math.floor(busy_s / TICK_S)
    high = None if upper is None else math.floor(upper / TICK_S)
    if upper is not None and busy_s > upper:
        return None
    found = _search(probe, k, hops, low, high)
    if found is None:
        return None
    counts = found[1]
    ends = np.cumsum(counts).tolist()
    times = [table.stage_s(row, d, end - n, end) for d, n, end in zip(devices, counts, ends, strict=True)]
    return max(sum(times) + hops_s, k * max(times), busy_s), counts


def _search(probe: Probe, k: int, hops: int, low: int, high: int | None) -> tuple[int, tuple[int, ...]] | None:
    """Smallest I of [low, high] ticks with ``sum + hops <= I`` and ``K * longest <= I``, and its counts."""
    unlimited = probe(2**62)
    if unlimited is None:
        return None
    # `low` comes in as the link occupancy: an interval below it gains nothing. The smallest conceivable sum raises it.
    low = max(low, unlimited[0] + hops)
    if high is not None and low > high:
        return None
    direct = probe(low // k)
    if direct is not None and direct[0] + hops <= low:
        return low, direct[1]
    # Invariant: low does not work; `best`, once there is one, works at its own number and every number above works.
    best: tuple[int, tuple[int, ...]] | None = None
    if high is None:
        step = max(1, low)
        while best is None:
            found = probe((low + step) // k)
            if found is not None and found[0] + hops <= low + step:
                best = low + step, found[1]
            else:
                low, step = low + step, 2 * step
    else:
        found = probe(high // k)
        if found is None or found[0] + hops > high:
            return None
        best = high, found[1]
    while best[0] - low > 1:
        middle = (low + best[0]) // 2
        found = probe(middle // k)
        if found is not None and found[0] + hops <= middle:
            best = middle, found[1]
        else:
            low = middle
    return best


def _filling_probe(table: CostTable, row: int, devices: Sequence[int], sequences: int) -> Probe | None:
    """Probe for identical layers: one each, then fill by ascending time per layer; ``None`` when memory is short."""
    num_layers, num_stages = table.num_layers, len(devices)
    fixed, per_layer, caps = [], [], []
    for index, device in enumerate(devices):
        c = int(table.device_class[device])
        is_first, is_last = index == 0, index == num_stages - 1
        time_s = float(table.fixed_s[row, c])
        held = int(table.workspace_bytes[row, c])
        if is_first:
            time_s += float(table.embed_s[row, c])
            held += int(table.embed_bytes[c])
        if is_last:
            time_s += float(table.head_s[row, c])
            held += int(table.head_bytes[row, c])
        if is_first and is_last:
            held -= int(table.tied_saving_bytes[c])
        size = int(table.weight_bytes[c, 0]) + sequences * int(table.kv_bytes[c, 0])
        free = int(table.capacity_bytes[c]) - held
        cap = (free // size if size else num_layers) if free >= 0 else 0
        if cap < 1:
            return None
        fixed.append(to_ticks(time_s))
        per_layer.append(to_ticks(float(table.layer_s[row, c, 0])))
        caps.append(min(cap, num_layers - num_stages + 1))
    if sum(caps) < num_layers:
        return None
    order = sorted(range(num_stages), key=lambda i: (per_layer[i], i))
    base = sum(fixed) + sum(per_layer)

    def probe(longest: int) -> tuple[int, tuple[int, ...]] | None:
        counts = [1] * num_stages
        rest, total = num_layers - num_stages, base
        for i in order:
            spare = longest - fixed[i]
            if spare < per_layer[i]:
                return None
            most = caps[i] if per_layer[i] == 0 else min(caps[i], spare // per_layer[i])
            extra = min(rest, most - 1)
            counts[i] += extra
            total += extra * per_layer[i]
            rest -= extra
        return None if rest else (total, tuple(counts))

    return probe


def _cutting_probe(table: CostTable, row: int, devices: Sequence[int], sequences: int) -> Probe | None:
    """Probe for any layers: dynamic program over the cut after each stage; ``None`` when memory is short."""
    num_layers, num_stages = table.num_layers, len(devices)
    costs = [
        _window_ticks(table, row, device, sequences, is_first=index == 0, is_last=index == num_stages - 1)
        for index, device in enumerate(devices)
    ]

    def probe(longest: int) -> tuple[int, tuple[int, ...]] | None:
        # total[l]: smallest sum of the stages so far with the last one ending at layer l.
        total = np.full(num_layers + 1, np.inf)
        total[0] = 0.0
        choices: list[IntArray] = []
        for cost in costs:
            sums = total[:, None] + np.where(cost <= longest, cost, np.inf)
            choices.append(np.argmin(sums, axis=0))
            total = np.min(sums, axis=0)
        if not np.isfinite(total[num_layers]):
            return None
        counts, end = [], num_layers
        for choice in reversed(choices):
            first = int(choice[end])
            counts.append(end - first)
            end = first
        return int(total[num_layers]), tuple(reversed(counts))

    return None if probe(2**62) is None else probe


def _window_ticks(
    table: CostTable, row: int, device: int, sequences: int, *, is_first: bool, is_last: bool
) -> FloatArray:
    """(L + 1, L + 1) float64 ticks of a stage ``[first, end)``, ``inf`` where it isn't allowed or doesn't fit."""
    c = int(table.device_class[device])
    prefix = table.layer_prefix_s[row, c] / TICK_S  # a division by a power of two is exact
    size = table.weight_prefix_bytes[c] + sequences * table.kv_prefix_bytes[c]
    time = prefix[None, :] - prefix[:, None] + table.fixed_s[row, c] / TICK_S
    held = size[None, :] - size[:, None] + int(table.workspace_bytes[row, c])
    is_allowed = np.triu(np.ones_like(time, dtype=bool), 1)
    if is_first:
        time = time + table.embed_s[row, c] / TICK_S
        held = held + int(table.embed_bytes[c])
        is_allowed[1:] = False
    if is_last:
        time = time + table.head_s[row, c] / TICK_S
        held = held + int(table.head_bytes[row, c])
        is_allowed[:, :-1] = False
    if is_first and is_last:
        held = held - int(table.tied_saving_bytes[c])
    return np.where(is_allowed & (held <= int(table.capacity_bytes[c])), time, np.inf)
