"""Reading a cluster file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from slob_opt.errors import InputError
from slob_opt.problem.catalogue import GpuFacts, gpu, is_ambiguous_gpu
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import ComputeProfile, Device, Link
from slob_opt.problem.files import plausibility
from slob_opt.problem.files.checking import check
from slob_opt.problem.files.cluster_schema import (
    MAX_CARDS,
    CardSchema,
    ClusterSchema,
    LinkSchema,
    NodeSchema,
    ProfileSchema,
)
from slob_opt.problem.files.documents import read_document
from slob_opt.problem.files.link_overrides import expand_links
from slob_opt.problem.files.profile_file import load_profile, profile_from
from slob_opt.problem.measured import MeasuredProfile

MEASURED_CARD_FLOPS, MEASURED_CARD_BYTES_PER_S = 5e13, 5e11
"""Peak and bandwidth of a card known only by its `layer_time`; their ratio shapes how batches scale from the measured
time (100 FLOP/byte, between RTX 3060's 71 and RTX 4090's 164). Chosen."""

DEFAULT_INTRA_LINK = Link(16e9, 1e-5)
"""Link inside a machine when the file has none: PCIe 3.0 x16 or 4.0 x8 at its nominal rate, 10 us chosen."""


def load_cluster(path: str | Path) -> Cluster:
    """Return the cluster in a YAML or JSON file (format: docs/files.md).

    Warns with PlausibilityWarning where a value looks like a slip of units.

    Raises
    ------
    InputError
        With file, key, what was found and what was expected.
    """
    file = Path(path)
    return build_cluster(read_document(file), file=str(file), default_name=file.stem)


def build_cluster(data: dict[str, object], *, file: str, default_name: str) -> Cluster:
    """Return the cluster in a document that was read already; as :func:`load_cluster`."""
    schema = check(ClusterSchema, data, file=file)
    try:
        return _cluster(schema, file, default_name)
    except InputError as error:
        raise error.located(file=file) from error


def _cluster(schema: ClusterSchema, file: str, default_name: str) -> Cluster:
    if sum(map(_num_cards, schema.nodes)) > MAX_CARDS:
        raise InputError(f"the counts make more than {MAX_CARDS} cards", key="nodes")
    groups: dict[str, tuple[str, ...]] = {}
    nodes: list[Node] = []
    for index, entry in enumerate(schema.nodes):
        key = f"nodes[{index}]"
        if entry.name in groups:
            raise InputError(f"node name {entry.name!r} is used twice, names must be unique", key=f"{key}.name")
        made = _nodes(entry, file, key)
        groups[entry.name] = tuple(node.name for node in made)
        nodes += made
    if schema.inter_link is None:
        if len(nodes) > 1:
            raise InputError(
                f"{len(nodes)} nodes need a link between them, as inter_link: {{bandwidth: 10Gbps, latency: 0.1ms}}",
                key="inter_link",
            )
        inter = DEFAULT_INTRA_LINK  # never used: there is one node
    else:
        inter = _link(schema.inter_link)
        plausibility.check_network(inter.bytes_per_s, inter.latency_s, file=file, key="inter_link")
    intra = DEFAULT_INTRA_LINK if schema.intra_link is None else _link(schema.intra_link)
    if schema.intra_link is not None:
        plausibility.check_bus(intra.bytes_per_s, intra.latency_s, file=file, key="intra_link")
    return Cluster(
        name=schema.name or default_name,
        nodes=tuple(nodes),
        inter_link=inter,
        intra_link=intra,
        overrides=expand_links(schema.links, tuple(nodes), groups, file=file),
        sources=tuple(schema.sources),
        uncertain=tuple(schema.uncertain),
    )


def _num_cards(entry: NodeSchema) -> int:
    cards = entry.gpus.values() if isinstance(entry.gpus, dict) else (card.count for card in entry.gpus)
    return (entry.count or 1) * sum(cards)


def _link(schema: LinkSchema) -> Link:
    return Link(schema.bandwidth, schema.latency)


def _nodes(entry: NodeSchema, file: str, key: str) -> list[Node]:
    names = [entry.name] if entry.count is None else [f"{entry.name}-{i}" for i in range(entry.count)]
    cards = _cards(entry, key)
    if not cards:
        raise InputError(f"node {entry.name} has no GPUs, expected at least one", key=f"{key}.gpus")
    if entry.count is not None and entry.count > 1 and any(card.name for card in cards):
        raise InputError(f"{entry.count} nodes can't share named cards; leave the names out", key=f"{key}.gpus")
    where = [f"{key}.gpus" if isinstance(entry.gpus, dict) else f"{key}.gpus[{i}]" for i in range(len(cards))]
    facts = [_facts(card, file, at) for card, at in zip(cards, where, strict=True)]
    for card, fact, at in zip(cards, facts, where, strict=True):
        _check_plausible(card, fact, file, at)
    link = None
    if entry.intra_link is not None:
        link = _link(entry.intra_link)
        if any(card.measured is None for card in cards):  # emulated cards exchange data through the host's memory
            plausibility.check_bus(link.bytes_per_s, link.latency_s, file=file, key=f"{key}.intra_link")
    if entry.nic is not None:
        plausibility.check_network(entry.nic, 0.0, file=file, key=f"{key}.nic")
    try:
        return [
            Node(
                name=name,
                devices=tuple(_devices(cards, facts, where, name, file)),
                intra_link=link,
                tp_degrees=(1,) if entry.tp_degrees is None else tuple(entry.tp_degrees),
                nic_bytes_per_s=entry.nic,
                region=entry.region,
            )
            for name in names
        ]
    except InputError as error:
        raise error.located(key=key) from error


def _cards(entry: NodeSchema, key: str) -> list[CardSchema]:
    """Return one schema per kind of card; `count` says how many there are."""
    if isinstance(entry.gpus, dict):
        return [CardSchema(type=name, count=number) for name, number in entry.gpus.items()]
    for index, card in enumerate(entry.gpus):
        if card.name is not None and card.count > 1:
            raise InputError(f"{card.count} cards can't share the name {card.name!r}", key=f"{key}.gpus[{index}].name")
    return list(entry.gpus)


def _facts(card: CardSchema, file: str, key: str) -> GpuFacts | None:
    """Return the catalogue entry of a card; ``None`` when its numbers are all written out."""
    is_complete = _is_complete(card)
    if card.type is None:
        if not is_complete:
            raise InputError(
                "a card without a type needs memory and either bandwidth and flops, layer_time or measured", key=key
            )
        return None
    try:
        facts = gpu(card.type)
    except InputError as error:
        if is_complete:
            return None  # a free name for a card that is described in full
        hint = "; or write its memory, bandwidth and flops"
        raise InputError(error.message + hint, key=f"{key}.type" if card.memory or card.flops else key) from error
    if is_ambiguous_gpu(card.type) and not is_complete:
        plausibility.warn(f"{card.type!r} has several variants, taken as {facts.id}", file=file, key=key)
    return facts


def _is_complete(card: CardSchema) -> bool:
    """Whether a card's numbers are all written out, so that its type is only a name."""
    is_timed = card.layer_time is not None or (card.bandwidth is not None and card.flops is not None)
    return card.memory is not None and (is_timed or card.measured is not None)


def _check_plausible(card: CardSchema, facts: GpuFacts | None, file: str, key: str) -> None:
    if card.memory is not None and card.measured is None:  # a measured device may be emulated, and of any size
        plausibility.check_memory(card.memory, facts, file=file, key=f"{key}.memory")
    plausibility.check_card_speed(card.bandwidth, card.flops, facts, file=file, key=key)
    if card.layer_time is not None:
        plausibility.check_layer_time(card.layer_time, file=file, key=f"{key}.layer_time")


def _devices(
    cards: list[CardSchema], facts: list[GpuFacts | None], where: list[str], node: str, file: str
) -> list[Device]:
    made: list[Device] = []
    for card, fact, key in zip(cards, facts, where, strict=True):
        measured = _measured(card, file, key)
        for _ in range(card.count):
            name = card.name or f"{node}/{len(made)}"
            try:
                made.append(_device(card, fact, name, measured))
            except InputError as error:
                raise error.located(key=key) from error
    return made


def _measured(card: CardSchema, file: str, key: str) -> MeasuredProfile | None:
    """Return the profile that a card names or holds, slowed down as the card says."""
    if card.measured is None:
        if card.slowdown is not None:
            raise InputError("a slowdown belongs to a card with a measured profile", file=file, key=f"{key}.slowdown")
        return None
    where = f"{key}.measured"
    if isinstance(card.measured, dict):
        profile = profile_from(card.measured, file=file, key=where)
    else:
        try:
            profile = load_profile(Path(file).parent / card.measured)
        except InputError as error:
            wrong = ": ".join(part for part in (error.file, error.key) if part)
            raise InputError(f"{wrong}: {error.message}", file=file, key=where) from error
    return profile.scaled(1.0 if card.slowdown is None else card.slowdown)


def _device(card: CardSchema, facts: GpuFacts | None, name: str, measured: MeasuredProfile | None) -> Device:
    flops = card.flops if card.flops is not None else facts.fp16_flops if facts else MEASURED_CARD_FLOPS
    rate = card.bandwidth if card.bandwidth is not None else facts.bytes_per_s if facts else MEASURED_CARD_BYTES_PER_S
    memory = card.memory if card.memory is not None else facts.usable_bytes if facts else 0
    profile = facts.profile if facts else ComputeProfile()
    unnamed = "custom" if measured is None else measured.hardware.name
    return Device(
        name=name,
        gpu=card.type or unnamed if facts is None or _is_complete(card) else facts.id,
        memory_bytes=memory,
        peak_flops=flops,
        bytes_per_s=rate,
        profile=profile if card.profile is None else _profile(card.profile, profile),
        layer_time_s=card.layer_time,
        measured=measured,
    )


def _profile(schema: ProfileSchema, base: ComputeProfile) -> ComputeProfile:
    given = {key: value for key, value in schema.model_dump().items() if value is not None}
    times = {"gemm_t0", "attn_t0", "comm_t0", "layer_overhead", "step_overhead"}
    fields = {f"{key}_s" if key in times else key: value for key, value in given.items()}
    fields.setdefault("source", "given in the cluster file")
    return dataclasses.replace(base, **fields)
