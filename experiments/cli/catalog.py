"""`slob catalog`: what is bundled."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Annotated, Literal

import typer
from rich.table import Table

from experiments.cli import options as opt
from experiments.cli import screen
from slob_opt.problem import catalogue
from slob_opt.problem.cluster import Cluster


class Kind(StrEnum):
    """A part of the catalogue."""

    GPUS = "gpus"
    MODELS = "models"
    CLUSTERS = "clusters"


def catalog(
    kind: Annotated[Kind, typer.Argument(help="gpus, models or clusters.")],
    format: opt.Format = opt.OutputFormat.TABLE,
) -> None:
    """List the GPUs, models or clusters that are bundled.

    Every entry's id can be given to --cluster or --model, or written into a cluster file. Uncertain facts are marked.

    Example: slob catalog clusters --format json
    """
    rows = {Kind.GPUS: gpu_rows, Kind.MODELS: model_rows, Kind.CLUSTERS: cluster_rows}[kind]()
    if format is opt.OutputFormat.JSON:
        screen.print_json({"kind": kind.value, "entries": rows})
        return
    screen.printer().print(_table(rows))


def gpu_rows() -> list[dict[str, object]]:
    """Return one entry per GPU (bytes, bytes/s, FLOP/s)."""
    facts = [catalogue.gpu(name) for name in catalogue.gpu_ids()]
    return [
        {
            "id": gpu.id,
            "name": gpu.name,
            "memory_bytes": gpu.memory_bytes,
            "bytes_per_s": gpu.bytes_per_s,
            "fp16_flops": gpu.fp16_flops,
            "year": gpu.year,
            "profile": gpu.profile.source,
            "uncertain": list(gpu.uncertain),
        }
        for gpu in facts
    ]


def model_rows() -> list[dict[str, object]]:
    """Return one entry per model."""
    models = [(name, catalogue.model(name)) for name in catalogue.model_ids()]
    return [
        {
            "id": name,
            "num_layers": model.num_layers,
            "num_params": model.num_params,
            "hidden_size": model.hidden_size,
            "num_heads": model.layers[0].num_heads,
            "num_kv_heads": model.layers[0].num_kv_heads,
            "has_equal_layers": model.has_identical_layers,
            "is_moe": any(layer.is_moe for layer in model.layers),
            "max_position": model.max_position,
            "uncertain": list(model.uncertain),
        }
        for name, model in models
    ]


def cluster_rows() -> list[dict[str, object]]:
    """Return one entry per cluster (bytes/s, seconds)."""
    clusters = [(name, catalogue.cluster(name)) for name in catalogue.cluster_ids()]
    return [
        {
            "id": name,
            "name": cluster.name,
            "num_nodes": len(cluster.nodes),
            "num_cards": len(cluster.devices),
            "cards": dict(Counter(device.gpu for device in cluster.devices)),
            "tp_degrees": sorted({degree for node in cluster.nodes for degree in node.tp_degrees}),
            "bytes_per_s": cluster.inter_link.bytes_per_s,
            "latency_s": cluster.inter_link.latency_s,
            "has_general_links": _has_general_links(cluster),
            "uncertain": list(cluster.uncertain),
        }
        for name, cluster in clusters
    ]


def _has_general_links(cluster: Cluster) -> bool:
    return bool(cluster.overrides) or any(len(node.devices) > 1 and 1 in node.tp_degrees for node in cluster.nodes)


def _table(rows: list[dict[str, object]]) -> Table:
    """Entries as a table with the columns people look for, quantities in usual units."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    keys = [key for key in rows[0] if key not in {"uncertain", "has_equal_layers", "has_general_links", "name"}]
    for key in keys:
        table.add_column(_TITLES.get(key, key.replace("num_", "").replace("_", " ")), justify=_justify(rows[0][key]))
    table.add_column("uncertain")
    for row in rows:
        uncertain = row["uncertain"]
        table.add_row(*(_cell(key, row[key]) for key in keys), _facts(uncertain))
    return table


_TITLES = {
    "cards": "types",
    "memory_bytes": "memory",
    "bytes_per_s": "bandwidth",
    "fp16_flops": "fp16",
    "latency_s": "latency",
}


def _facts(uncertain: object) -> str:
    count = len(uncertain) if isinstance(uncertain, list) else 0
    return f"{count} fact{'s' if count > 1 else ''}" if count else ""


def _justify(value: object) -> Literal["left", "right"]:
    return "right" if isinstance(value, int | float) and not isinstance(value, bool) else "left"


_QUANTITIES = {
    "memory_bytes": (2**30, "GiB"),
    "bytes_per_s": (1e9, "GB/s"),
    "fp16_flops": (1e12, "TFLOP/s"),
    "latency_s": (1e-3, "ms"),
    "num_params": (1e9, "G"),
}
"""Unit in which a column is shown, by key."""


def _cell(key: str, value: object) -> str:
    if value is None:
        return "–"
    if key in _QUANTITIES and isinstance(value, int | float):
        size, unit = _QUANTITIES[key]
        return f"{value / size:.4g} {unit}"
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)
