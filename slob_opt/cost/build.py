"""From cluster, model and traffic to the cost table: the formulas evaluated once, for planning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slob_opt.cost import memory, roofline
from slob_opt.cost.batch import BatchShape, round_half_up
from slob_opt.cost.groups import PlanningGroups, form_groups
from slob_opt.cost.links import link_classes
from slob_opt.cost.table import CostTable, quantise
from slob_opt.errors import InputError
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.traffic import TrafficProfile

DEFAULT_BATCH_GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Micro-batch sizes of the throughput objective; chosen, so that neighbours differ by at most a third from 4 on."""

DEFAULT_FRAMEWORK_BYTES = 1_342_177_280
"""1.25 GiB on every card for the driver's context, graphs and allocator slack: what a measured run of vLLM 0.19 with
Llama-3.1-8B on an RTX 4090 leaves after weights, KV and activations, with 24 GiB taken as the card's memory (2025)."""

TOKEN_ID_BYTES = 4
"""Bytes of a token id on its way back to the first stage."""


@dataclass(frozen=True, slots=True)
class CostOptions:
    """Choices of the cost model that are neither cluster, model nor traffic.

    Attributes
    ----------
    batch_grid
        Micro-batch sizes for the throughput rows, ascending.
    memory_utilization
        Share of a card's memory that may be used.
    framework_bytes
        Bytes a card that the framework takes whatever the stage; a card with a measured profile has its own.
    kv_mode
        ``"safe"`` or ``"tight"``, see :data:`slob_opt.cost.memory.KV_MODES`.
    block_tokens
        Tokens of a KV block.
    """

    batch_grid: tuple[int, ...] = DEFAULT_BATCH_GRID
    memory_utilization: float = 0.92
    framework_bytes: int = DEFAULT_FRAMEWORK_BYTES
    kv_mode: str = "safe"
    block_tokens: int = 16

    def __post_init__(self) -> None:
        if not self.batch_grid or list(self.batch_grid) != sorted(set(self.batch_grid)) or self.batch_grid[0] < 1:
            raise InputError(f"batch_grid is {self.batch_grid}, expected ascending whole numbers from 1")
        if not 0 < self.memory_utilization <= 1:
            raise InputError(f"memory_utilization is {self.memory_utilization}, expected above 0 and at most 1")
        if self.framework_bytes < 0:
            raise InputError(f"framework_bytes is {self.framework_bytes}, expected at least 0")
        if self.kv_mode not in memory.KV_MODES:
            raise InputError(f"kv_mode is {self.kv_mode!r}, expected one of {', '.join(memory.KV_MODES)}")
        if self.block_tokens < 1:
            raise InputError(f"block_tokens is {self.block_tokens}, expected at least 1")


def mean_context_tokens(traffic: TrafficProfile) -> int:
    """Return the mean context of a decode token: the prompt and half of the output, within the KV reservation.

    Memory is planned for the full `kv_tokens`; time for the mean, since it's an average that a rate adds up.
    """
    return min(traffic.prompt_tokens + max(1, traffic.output_tokens // 2), traffic.kv_tokens)


def planning_shapes(traffic: TrafficProfile, options: CostOptions | None = None) -> tuple[BatchShape, ...]:
    """Return the iteration of each table row.

    Row 0 is one decode token; the others carry b decode tokens of the grid and ``b * prompt / output`` prefill tokens,
    which is what keeps requests coming as fast as they end.
    """
    options = options or CostOptions()
    context = mean_context_tokens(traffic)
    share = traffic.prompt_tokens / traffic.output_tokens
    one = BatchShape.ragged((context,))
    return (
        one,
        *(BatchShape.average(b, context, round_half_up(b * share), traffic.prompt_tokens) for b in options.batch_grid),
    )


def build_table(
    cluster: Cluster, model: ModelSpec, traffic: TrafficProfile, options: CostOptions | None = None
) -> CostTable:
    """Return the cost table of a cluster, a model and a traffic profile.

    Planning devices are single cards and tensor-parallel groups, as the `tp_degrees` of each node and the model's heads
    allow. Equal cards share a class, so that planners see their symmetry.

    Parameters
    ----------
    cluster, model, traffic
        What is given.
    options
        ``None`` takes the defaults of :class:`CostOptions`.

    Raises
    ------
    InputError
        When no tensor-parallel degree of a node divides the model's heads, or a node has too few equal cards for one.

    Examples
    --------
    >>> from slob_opt.problem.cluster import Node
    >>> from slob_opt.problem.device import Device, Link
    >>> from slob_opt.problem.model import LayerSpec
    >>> card = Device("n/0", "L4", 24 * 2**30, 121e12, 300e9)
    >>> cluster = Cluster("one card", (Node("n", (card,)),), Link(1.25e9, 1e-3), Link(12e9, 1e-5))
    >>> layer = LayerSpec(67108864, 135266304, 32, 32, 128)
    >>> model = ModelSpec("llama-2-7b", 4096, 32000, (layer,) * 32, 131072000, 131076096)
    >>> table = build_table(cluster, model, TrafficProfile())
    >>> table.num_devices, table.num_layers, table.batch_sizes[:4]
    (1, 32, (1, 1, 2, 3))
    """
    options = options or CostOptions()
    shapes = planning_shapes(traffic, options)
    groups = form_groups(cluster, model)
    distinct = list(dict.fromkeys(model.layers))
    layer_index = np.array([distinct.index(layer) for layer in model.layers], np.int64)
    rows = (1, *options.batch_grid)
    link_class, link_speed, link_latency, nic_bytes_per_s = link_classes(cluster, groups)
    hop_bytes = np.array([-(-s.computed_tokens * model.hidden_size * model.activation_bits // 8) for s in shapes])
    return_bytes = np.array([TOKEN_ID_BYTES * b for b in rows])
    occupancy_s, return_occupancy_s = hop_bytes[:, None] / link_speed, return_bytes[:, None] / link_speed
    context = mean_context_tokens(traffic)
    layer_s = np.array(
        [
            [
                [roofline.layer_s(g, model, layer, s, measured_context_tokens=context) for layer in distinct]
                for g in groups.classes
            ]
            for s in shapes
        ]
    )
    table_bytes = _class_bytes(groups, model, traffic, shapes, options)
    return CostTable(
        device_names=groups.names,
        device_cards=groups.cards,
        device_node=groups.node,
        device_class=groups.class_of,
        class_names=groups.class_names,
        batch_sizes=rows,
        fixed_s=quantise(np.array([[roofline.step_s(g) for g in groups.classes] for _ in shapes])),
        layer_s=quantise(layer_s)[:, :, layer_index],
        embed_s=quantise(np.array([[roofline.embedding_s(g, model, s) for g in groups.classes] for s in shapes])),
        head_s=quantise(np.array([[roofline.head_s(g, model, s) for g in groups.classes] for s in shapes])),
        capacity_bytes=table_bytes["capacity"],
        workspace_bytes=table_bytes["workspace"],
        weight_bytes=table_bytes["weights"][:, layer_index],
        kv_bytes=table_bytes["kv"][:, layer_index],
        embed_bytes=table_bytes["embedding"],
        head_bytes=table_bytes["head"],
        tied_saving_bytes=table_bytes["tied_saving"],
        link_class=link_class,
        hop_s=quantise(occupancy_s + link_latency),
        occupancy_s=quantise(occupancy_s),
        return_s=quantise(return_occupancy_s + link_latency),
        return_occupancy_s=quantise(return_occupancy_s),
        hop_bytes=hop_bytes.astype(np.int64),
        return_bytes=return_bytes.astype(np.int64),
        nic_bytes_per_s=nic_bytes_per_s,
        kv_mode=options.kv_mode,
        weight_bits=None if any(layer.weight_bytes is not None for layer in distinct) else float(model.weight_bits),
        logits_bytes=np.array([memory.logits_bytes(model, s.num_sequences) for s in shapes], np.int64),
    )


def _class_bytes(
    groups: PlanningGroups,
    model: ModelSpec,
    traffic: TrafficProfile,
    shapes: tuple[BatchShape, ...],
    options: CostOptions,
) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Bytes a card by part: (C,), (C, distinct layers) or (R, C)."""
    distinct = list(dict.fromkeys(model.layers))
    degrees = [g.degree for g in groups.classes]
    framework = [memory.framework_bytes(g.device, options.framework_bytes) for g in groups.classes]
    parts: dict[str, list[int] | list[list[int]]] = {
        "capacity": [int(g.device.memory_bytes * options.memory_utilization) for g in groups.classes],
        "workspace": [
            [
                own + memory.activation_bytes(model, s.computed_tokens, d)
                for own, d in zip(framework, degrees, strict=True)
            ]
            for s in shapes
        ],
        "weights": [[memory.weight_bytes(model, layer, d) for layer in distinct] for d in degrees],
        "kv": [
            [
                memory.kv_sequence_bytes(
                    model,
                    layer,
                    traffic.kv_tokens,
                    d,
                    kv_mode=options.kv_mode,
                    block_tokens=options.block_tokens,
                )
                for layer in distinct
            ]
            for d in degrees
        ],
        "embedding": [memory.embedding_bytes(model, d) for d in degrees],
        "head": [
            [memory.head_weight_bytes(model, d) + memory.logits_bytes(model, s.num_sequences) for d in degrees]
            for s in shapes
        ],
        "tied_saving": [memory.tied_saving_bytes(model, d) for d in degrees],
    }
    return {name: np.array(values, np.int64) for name, values in parts.items()}
