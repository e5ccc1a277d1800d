"""A cost table from plain numbers: seconds and bytes per layer, for measured or made-up devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slob_opt.cost.table import CostTable, quantise
from slob_opt.errors import InputError


@dataclass(frozen=True, slots=True)
class DirectClass:
    """Devices with equal numbers.

    Attributes
    ----------
    name
        Class name.
    count
        Number of such devices.
    capacity_bytes
        Usable memory of one, bytes.
    layer_s
        Seconds per layer at batch 1; one number, or one a layer.
    layer_per_sequence_s
        Extra seconds per layer and further sequence of the micro-batch.
    fixed_s, embed_s, head_s
        Seconds per iteration, and extra on the first and on the last stage.
    """

    name: str
    count: int
    capacity_bytes: int
    layer_s: float | Sequence[float]
    layer_per_sequence_s: float = 0.0
    fixed_s: float = 0.0
    embed_s: float = 0.0
    head_s: float = 0.0


def direct_table(
    classes: Sequence[DirectClass],
    num_layers: int,
    *,
    layer_bytes: int | Sequence[int],
    kv_bytes: int | Sequence[int] = 0,
    embed_bytes: int = 0,
    head_bytes: int = 0,
    tied_saving_bytes: int = 0,
    workspace_bytes: int = 0,
    batch_sizes: Sequence[int] = (1, 2, 4, 8),
    tokens_per_sequence: float = 1.0,
    hop_bytes_per_token: int = 0,
    latency_s: float = 0.0,
    bytes_per_s: float = 1e9,
    pair_links: Sequence[Sequence[tuple[float, float]]] | None = None,
    nodes: Sequence[int] | None = None,
    weight_bits: float | None = 16,
) -> CostTable:
    """Return a cost table from plain numbers.

    Parameters
    ----------
    classes
        Device classes; devices are numbered class by class.
    num_layers
        L.
    layer_bytes, kv_bytes
        Weights of a layer and KV of one sequence in one layer, bytes; one number, or one a layer.
    embed_bytes, head_bytes, tied_saving_bytes, workspace_bytes
        Extra bytes on the first stage, the last stage, saved when one stage is both, and on every stage.
    batch_sizes
        Grid of micro-batch sizes for the throughput objective.
    tokens_per_sequence
        Tokens of an iteration per decode token (1 + mean prompt / mean output); scales hops in throughput rows.
    hop_bytes_per_token, latency_s, bytes_per_s
        Message between stages and the one link that all pairs use.
    pair_links
        (D, D) pairs (bytes/s, latency in s) instead of the one link.
    nodes
        (D,) node index of each device; ``None`` puts each device on its own node.
    weight_bits
        Bits that a weight of the layers is stored in; ``None`` when that is not known.

    Raises
    ------
    InputError
        When a per-layer sequence has not L entries.
    """
    num_devices = sum(c.count for c in classes)
    rows = (1, *batch_sizes)
    tokens = np.array([1.0, *(b * tokens_per_sequence for b in batch_sizes)])

    def per_layer(value: float | Sequence[float], what: str) -> np.ndarray:
        array = np.broadcast_to(np.asarray(value, dtype=np.float64), (num_layers,)) if np.ndim(value) == 0 else None
        if array is None:
            array = np.asarray(value, dtype=np.float64)
        if array.shape != (num_layers,):
            raise InputError(f"{what} has {array.size} entries, expected {num_layers}")
        return array

    base = np.stack([per_layer(c.layer_s, f"layer_s of {c.name}") for c in classes])
    extra = np.array([c.layer_per_sequence_s for c in classes])
    layer_s = base[None] + (np.array(rows) - 1)[:, None, None] * extra[None, :, None]

    def by_row(values: list[float]) -> np.ndarray:
        return quantise(np.broadcast_to(np.array(values, dtype=np.float64), (len(rows), len(classes))))

    ones = np.ones(len(classes), np.int64)
    if pair_links is None:
        link_class = np.zeros((num_devices, num_devices), np.int64)
        links = [(bytes_per_s, latency_s)]
    else:
        flat = [
            (pair_links[i][j][0], pair_links[i][j][1]) for i in range(num_devices) for j in range(num_devices) if i != j
        ]
        links = sorted(set(flat))
        index = {link: i for i, link in enumerate(links)}
        link_class = np.zeros((num_devices, num_devices), np.int64)
        for i in range(num_devices):
            for j in range(num_devices):
                if i != j:
                    link_class[i, j] = index[(pair_links[i][j][0], pair_links[i][j][1])]
    np.fill_diagonal(link_class, -1)
    speed = np.array([link[0] for link in links])
    latency = np.array([link[1] for link in links])
    hop_bytes = np.array([round(t * hop_bytes_per_token) for t in tokens], np.int64)
    return_bytes = np.array([4 * b for b in rows], np.int64)
    occupancy = quantise(hop_bytes[:, None] / speed)
    return_occupancy = quantise(return_bytes[:, None] / speed)
    device_nodes = np.arange(num_devices) if nodes is None else np.asarray(nodes, np.int64)
    return CostTable(
        device_names=tuple(f"{c.name}-{i}" for c in classes for i in range(c.count)),
        device_cards=tuple((d,) for d in range(num_devices)),
        device_node=device_nodes.astype(np.int64),
        device_class=np.repeat(np.arange(len(classes)), [c.count for c in classes]).astype(np.int64),
        class_names=tuple(c.name for c in classes),
        batch_sizes=rows,
        fixed_s=by_row([c.fixed_s for c in classes]),
        layer_s=quantise(layer_s),
        embed_s=by_row([c.embed_s for c in classes]),
        head_s=by_row([c.head_s for c in classes]),
        capacity_bytes=np.array([c.capacity_bytes for c in classes], np.int64),
        workspace_bytes=np.full((len(rows), len(classes)), workspace_bytes, np.int64),
        weight_bytes=np.tile(per_layer(layer_bytes, "layer_bytes").astype(np.int64), (len(classes), 1)),
        kv_bytes=np.tile(per_layer(kv_bytes, "kv_bytes").astype(np.int64), (len(classes), 1)),
        embed_bytes=embed_bytes * ones,
        head_bytes=np.full((len(rows), len(classes)), head_bytes, np.int64),
        tied_saving_bytes=tied_saving_bytes * ones,
        link_class=link_class,
        hop_s=quantise(occupancy + latency),
        occupancy_s=occupancy,
        return_s=quantise(return_occupancy + latency),
        return_occupancy_s=return_occupancy,
        hop_bytes=hop_bytes,
        return_bytes=return_bytes,
        nic_bytes_per_s=np.full(int(device_nodes.max()) + 1, np.inf),
        weight_bits=weight_bits,
    )
