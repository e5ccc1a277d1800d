"""Writing a cluster as a YAML file that loads to an equal cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import yaml

from slob_opt.errors import InputError
from slob_opt.problem.catalogue import gpu
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import ComputeProfile, Device, Link
from slob_opt.problem.files.checking import SCHEMA_VERSION
from slob_opt.problem.files.cluster_file import MEASURED_CARD_BYTES_PER_S, MEASURED_CARD_FLOPS
from slob_opt.problem.files.profile_file import profile_data
from slob_opt.problem.measured import MeasuredProfile
from slob_opt.units import SpelledFloat, SpelledInt, format_bytes, format_flops, format_rate, format_seconds

Profiles = Mapping[MeasuredProfile, str]
"""Measured profiles, as they are without a slowdown, and the files that hold them."""


def dump_cluster(cluster: Cluster, profiles: Profiles | None = None) -> str:
    """Return the YAML text of a cluster; loading it gives an equal cluster.

    Quantities that were read from a file keep their spelling, others get the largest unit that is exact. Equal
    machines that are numbered from 0 are written once, with their count.

    Parameters
    ----------
    cluster
        The cluster.
    profiles
        Files of measured profiles, by names relative to where the text will lie; a profile that isn't among them is
        written into the text.
    """
    profiles = profiles or {}
    data: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "name": cluster.name}
    data["inter_link"] = _link(cluster.inter_link)
    data["intra_link"] = _link(cluster.intra_link)
    data["nodes"] = _node_entries(cluster, profiles)
    if cluster.overrides:
        data["links"] = _override_entries(cluster)
    if cluster.sources:
        data["sources"] = list(cluster.sources)
    if cluster.uncertain:
        data["uncertain"] = list(cluster.uncertain)
    text: str = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, allow_unicode=True, width=110)
    return text


def _link(link: Link) -> dict[str, str]:
    return {"bandwidth": format_rate(link.bytes_per_s), "latency": format_seconds(link.latency_s)}


def _node_entries(cluster: Cluster, profiles: Profiles) -> list[dict[str, Any]]:
    """Return one entry a run of equal nodes."""
    names = {node.name for node in cluster.nodes}
    entries: list[dict[str, Any]] = []
    used: set[str] = set()
    at = 0
    while at < len(cluster.nodes):
        run = _run_length(cluster.nodes, at)
        base = cluster.nodes[at].name.rpartition("-")[0]
        entry = _node(cluster.nodes[at], profiles)
        if run > 1 and base not in names | used:
            entry = {"name": base, "count": run} | {k: v for k, v in entry.items() if k != "name"}
            used.add(base)
        else:
            run = 1
        entries.append(entry)
        at += run
    return entries


def _run_length(nodes: tuple[Node, ...], at: int) -> int:
    """Return how many nodes from `at` on are ``base-0``, ``base-1``, ... and otherwise equal."""
    base, _, number = nodes[at].name.rpartition("-")
    if number != "0" or not base or any(d.name != f"{nodes[at].name}/{i}" for i, d in enumerate(nodes[at].devices)):
        return 1
    run = 1
    while at + run < len(nodes) and nodes[at + run] == _renamed(nodes[at], f"{base}-{run}"):
        run += 1
    return run


def _renamed(node: Node, name: str) -> Node:
    return replace(node, name=name, devices=tuple(replace(d, name=f"{name}/{i}") for i, d in enumerate(node.devices)))


def _node(node: Node, profiles: Profiles) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": node.name, "gpus": _gpus(node, profiles)}
    if node.tp_degrees != (1,):
        entry["tp_degrees"] = list(node.tp_degrees)
    if node.nic_bytes_per_s is not None:
        entry["nic"] = format_rate(node.nic_bytes_per_s)
    if node.region is not None:
        entry["region"] = node.region
    if node.intra_link is not None:
        entry["intra_link"] = _link(node.intra_link)
    return entry


def _gpus(node: Node, profiles: Profiles) -> dict[str, int] | list[dict[str, Any]]:
    """Return the cards as counts by type where that says it all, else as a list of runs of equal cards."""
    cards: list[dict[str, Any]] = []
    for index, device in enumerate(node.devices):
        card = _card(device, profiles)
        if device.name != f"{node.name}/{index}":
            card = {"name": device.name} | card
        elif cards and {k: v for k, v in cards[-1].items() if k != "count"} == card:
            cards[-1]["count"] = cards[-1].get("count", 1) + 1
            continue
        cards.append(card)
    types = [card.get("type") for card in cards]
    if all(set(card) <= {"type", "count"} for card in cards) and len(set(types)) == len(types):
        return {str(card["type"]): card.get("count", 1) for card in cards}
    return cards


def _card(device: Device, profiles: Profiles) -> dict[str, Any]:
    """Return what distinguishes a card from its catalogue type, or all its numbers when it has none."""
    try:
        facts = gpu(device.gpu)
    except InputError:
        facts = None
    unnamed = "custom" if device.measured is None else device.measured.hardware.name
    card: dict[str, Any] = {} if device.gpu == unnamed else {"type": device.gpu}
    is_entry = facts is not None and facts.id == device.gpu
    if facts is None or not is_entry or _is_own(device.memory_bytes, facts.usable_bytes):
        card["memory"] = format_bytes(device.memory_bytes)
    is_timed = (device.layer_time_s is not None or device.measured is not None) and not is_entry
    has_nominal = (device.peak_flops, device.bytes_per_s) == (MEASURED_CARD_FLOPS, MEASURED_CARD_BYTES_PER_S)
    if facts is None or not is_entry:
        if not (is_timed and has_nominal and facts is None):
            card["bandwidth"], card["flops"] = format_rate(device.bytes_per_s), format_flops(device.peak_flops)
    else:
        if _is_own(device.bytes_per_s, facts.bytes_per_s):
            card["bandwidth"] = format_rate(device.bytes_per_s)
        if _is_own(device.peak_flops, facts.fp16_flops):
            card["flops"] = format_flops(device.peak_flops)
    if device.layer_time_s is not None:
        card["layer_time"] = format_seconds(device.layer_time_s)
    profile = _profile(device.profile, facts.profile if facts is not None else ComputeProfile())
    if profile:
        card["profile"] = profile
    if device.measured is not None:
        real = replace(device.measured, slowdown=1.0)
        card["measured"] = profiles[real] if real in profiles else profile_data(real)
        if device.measured.slowdown != 1.0:
            card["slowdown"] = float(device.measured.slowdown)
    return card


def _is_own(value: float, usual: float) -> bool:
    return value != usual or isinstance(value, SpelledFloat | SpelledInt)


def _profile(profile: ComputeProfile, base: ComputeProfile) -> dict[str, Any]:
    if profile == base:
        return {}
    found: dict[str, Any] = {}
    for item in fields(ComputeProfile):
        value = getattr(profile, item.name)
        if value != getattr(base, item.name) or item.name == "source":
            is_time = item.name.endswith("_s")
            found[item.name.removesuffix("_s")] = format_seconds(value) if is_time else value
    return {key: float(value) if isinstance(value, int | float) else value for key, value in found.items()}


def _override_entries(cluster: Cluster) -> list[dict[str, Any]]:
    """Return one entry a pair that is equal both ways, else one a direction."""
    entries: list[dict[str, Any]] = []
    done: set[tuple[str, str]] = set()
    for (a, b), link in cluster.overrides.items():
        if (a, b) in done:
            continue
        if cluster.overrides.get((b, a)) == link:
            done.add((b, a))
            entries.append({"between": [a, b]} | _link(link))
        else:
            entries.append({"from": a, "to": b} | _link(link))
    return entries
