"""Clusters of the catalogue: published ones with known cards, and a few small examples of our own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from slob_opt.problem.catalogue.gpus import gpu_device
from slob_opt.problem.catalogue.lookup import read_data, unknown
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Link


def _link(row: Mapping[str, Any]) -> Link:
    return Link(float(row["bytes_per_s"]), float(row["latency_s"]))


def _nodes(row: Mapping[str, Any]) -> list[Node]:
    count = row.get("count", 1)
    names = [row["name"]] if count == 1 else [f"{row['name']}-{i}" for i in range(count)]
    types = [gpu for gpu, number in row["gpus"].items() for _ in range(number)]
    link = row.get("intra_link")
    return [
        Node(
            name=name,
            devices=tuple(gpu_device(gpu, f"{name}/{i}") for i, gpu in enumerate(types)),
            intra_link=None if link is None else _link(link),
            tp_degrees=tuple(row.get("tp_degrees", (1,))),
            region=row.get("region"),
        )
        for name in names
    ]


def _region_overrides(rows: list[Mapping[str, Any]], nodes: tuple[Node, ...]) -> dict[tuple[str, str], Link]:
    """Return the links between all pairs of nodes of the named regions, both ways."""
    found: dict[tuple[str, str], Link] = {}
    for row in rows:
        left, right = row["between"]
        link = _link(row)
        for a in nodes:
            for b in nodes:
                if a is not b and (a.region, b.region) in ((left, right), (right, left)):
                    found[a.name, b.name] = link
    return found


@cache
def _rows() -> dict[str, Mapping[str, Any]]:
    return {row["id"]: row for row in read_data("clusters.json")["clusters"]}


@cache
def _cluster(id_: str) -> Cluster:
    row = _rows()[id_]
    nodes = tuple(node for entry in row["nodes"] for node in _nodes(entry))
    return Cluster(
        name=id_,
        nodes=nodes,
        inter_link=_link(row["inter_link"]),
        intra_link=_link(row["intra_link"]),
        overrides=_region_overrides(row.get("region_links", []), nodes),
        sources=tuple(row["sources"]),
        uncertain=tuple(row["uncertain"]),
    )


def cluster_ids() -> tuple[str, ...]:
    """Return all catalogue ids of clusters."""
    return tuple(_rows())


def cluster(name: str) -> Cluster:
    """Return a cluster by id, as ``helix-single24``.

    Raises
    ------
    InputError
        When no entry has this id; the nearest ones are named.
    """
    if name not in _rows():
        raise unknown("cluster", name, _rows())
    return _cluster(name)


def left_out_clusters() -> tuple[tuple[str, str], ...]:
    """Return the published clusters that are not in the catalogue, as (id, reason)."""
    return tuple((row["id"], row["reason"]) for row in read_data("clusters.json")["left_out"])
