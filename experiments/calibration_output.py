"""What a calibration leaves behind: plain JSON, rows of a table, and the cluster of emulated cards made from it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from runtime.calibration_fit import ProfileFit
from runtime.calibration_links import LinkFit
from slob_opt.cost.batch import BatchShape
from slob_opt.cost.profiled import PART_NAMES
from slob_opt.errors import InputError
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Device, Link
from slob_opt.problem.files.checking import SCHEMA_VERSION
from slob_opt.problem.files.cluster_file import (
    DEFAULT_INTRA_LINK,
    MEASURED_CARD_BYTES_PER_S,
    MEASURED_CARD_FLOPS,
)
from slob_opt.problem.files.profile_file import profile_data
from slob_opt.problem.measured import MeasuredProfile
from slob_opt.units import format_bytes

SPARE_CORES = 0.5
"""Cores that emulated cards leave to the server and the engine. Chosen with the runtime's own check."""

PART_TEXTS = {
    "step": "each iteration of a stage",
    "layer": "each layer",
    "decode_row": "a row that decodes, a layer",
    "chunk_row": "a row of a prompt, a layer",
    "kv_token": "a cached token read, a layer",
    "pair": "a (query, key) pair, a layer",
    "embedding": "embedding",
    "embedding_token": "embedding, a token",
    "head": "head",
}
"""What each coefficient is the time of, for people."""


@dataclass(frozen=True, slots=True)
class EmulatedCard:
    """A card of a cluster that one machine pretends to be.

    Attributes
    ----------
    slowdown
        It takes so many times as long as the real device.
    memory_bytes
        What it may hold.
    """

    slowdown: float
    memory_bytes: int


def emulated_cards(slowdowns: Sequence[float], memories: Sequence[int], cores: float | None) -> list[EmulatedCard]:
    """Return a card for each slowdown; a single memory or slowdown is every card's.

    Parameters
    ----------
    slowdowns, memories
        From 1, and bytes.
    cores
        Cores that the cards share; ``None`` doesn't check them.

    Raises
    ------
    InputError
        When the numbers of slowdowns and memories differ, a slowdown is below 1, or the cards need more cores.
    """
    count = max(len(slowdowns), len(memories))
    if not slowdowns or not memories or {len(slowdowns), len(memories)} - {1, count}:
        raise InputError(f"{len(slowdowns)} slowdowns and {len(memories)} memories, expected one of each a card")
    slow = list(slowdowns) * count if len(slowdowns) == 1 else list(slowdowns)
    sizes = list(memories) * count if len(memories) == 1 else list(memories)
    if min(slow) < 1:
        raise InputError(f"slowdown {min(slow):g}, expected at least 1: a device can't be emulated faster than it is")
    need = sum(1 / value for value in slow)
    if cores is not None and need > cores - SPARE_CORES:
        raise InputError(
            f"cards with slowdowns {', '.join(f'{value:g}' for value in slow)} take {need:.2f} cores together, the"
            f" machine has {cores:g} and {SPARE_CORES:g} must stay free; slow them down more"
        )
    return [EmulatedCard(*pair) for pair in zip(slow, sizes, strict=True)]


def emulated_cluster(name: str, profile: MeasuredProfile, cards: Sequence[EmulatedCard], link: Link) -> Cluster:
    """Return a cluster of one machine ``box`` with cards that the measured device pretends to be."""
    devices = tuple(
        Device(
            name=f"box/{index}",
            gpu=profile.hardware.name,
            memory_bytes=card.memory_bytes,
            peak_flops=MEASURED_CARD_FLOPS,
            bytes_per_s=MEASURED_CARD_BYTES_PER_S,
            measured=replace(profile, slowdown=card.slowdown),
        )
        for index, card in enumerate(cards)
    )
    source = f"slob calibrate on {profile.hardware.name} with {profile.model.name} in {profile.model.dtype}; emulated"
    usual = DEFAULT_INTRA_LINK  # never used: there is one node, and it has its own
    return Cluster(name, (Node("box", devices, intra_link=link),), usual, usual, sources=(source,))


def relative_name(file: Path, folder: Path) -> str:
    """Return the name under which files in a folder refer to a file."""
    return Path(os.path.relpath(file.resolve(), folder.resolve())).as_posix()


def workers_text(cards: Sequence[EmulatedCard], torch_device: str) -> str:
    """Return a workers file that makes the cards of :func:`emulated_cluster` on one device."""
    workers = [
        {
            "device": f"box/{index}",
            "torch": torch_device,
            "emulate": {"slowdown": float(card.slowdown), "memory": format_bytes(card.memory_bytes)},
        }
        for index, card in enumerate(cards)
    ]
    text: str = yaml.safe_dump({"schema_version": SCHEMA_VERSION, "workers": workers}, sort_keys=False)
    return text


def calibration_json(
    profile: MeasuredProfile,
    fit: ProfileFit | None,
    link: LinkFit | None,
    config: dict[str, object],
    files: dict[str, str | None],
) -> dict[str, Any]:
    """Return all that is known as plain JSON; times in seconds but for the profile's own, which have units."""
    return {
        "config": config,
        "profile": profile_data(profile),
        "link": None if link is None else link_json(link),
        "measurements": [] if fit is None else measurement_rows(fit),
        "files": files,
    }


def link_json(link: LinkFit) -> dict[str, Any]:
    """Return a fitted link as plain JSON, SI units."""
    return {
        "latency_s": link.link.latency_s,
        "bytes_per_s": link.link.bytes_per_s,
        "median_error": link.median_error,
        "worst_error": link.worst_error,
        "transfers": [{"num_bytes": item.num_bytes, "seconds": item.seconds} for item in link.transfers],
    }


def measurement_rows(fit: ProfileFit) -> list[dict[str, Any]]:
    """Return each measurement as plain JSON with what the profile says of it, seconds."""
    return [
        {
            "layers": [item.first, item.end],
            "decode_contexts": list(item.shape.decode_contexts),
            "prefill_chunks": [list(chunk) for chunk in item.shape.prefill_chunks],
            "measured_s": item.seconds,
            "wall_s": item.wall_s,
            "fitted_s": fitted,
            "held_out_s": held_out,
            "num_runs": item.num_runs,
            "spread": item.spread,
        }
        for item, fitted, held_out in zip(fit.measurements, fit.fitted_s, fit.held_out_s, strict=True)
    ]


def shape_text(shape: BatchShape) -> str:
    """Return a shape in words: ``4 x 128 + 32 after 0``."""
    parts = []
    contexts = shape.decode_contexts
    if contexts:
        span = str(contexts[0]) if len(set(contexts)) == 1 else f"{min(contexts)}..{max(contexts)}"
        parts.append(f"{len(contexts)} decode{'s' if len(contexts) > 1 else ''} over {span}")
    chunks = shape.prefill_chunks
    if chunks:
        cached, size = chunks[0]
        after = f" after {cached}" if cached else ""
        parts.append(f"{len(chunks)} x {size}{after}" if len(chunks) > 1 else f"prompt of {size}{after}")
    return " + ".join(parts)


def time_rows(profile: MeasuredProfile) -> list[tuple[str, str, str]]:
    """Return each coefficient as text: what it is of, its value, its standard error."""
    rows = []
    for name in PART_NAMES:
        value = getattr(profile, name)
        rows.append((PART_TEXTS[name], short_time(value.value_s), short_time(value.error_s)))
        if name == "layer":
            for slope in profile.layer_tokens:
                what = f"a computed token after {slope.after}, a layer"
                rows.append((what, short_time(slope.value_s), short_time(slope.error_s)))
    for slope in profile.head_rows:
        rows.append((f"a row of the head after {slope.after}", short_time(slope.value_s), short_time(slope.error_s)))
    return rows


def short_time(seconds: float) -> str:
    """Return a time with three digits in the unit that fits, as ``12.3 us``."""
    if seconds == 0:
        return "0"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def worst_rows(fit: ProfileFit, count: int = 5) -> list[tuple[str, str, str, float]]:
    """Return the shapes that the profile misses most: layers, shape, measured time, relative error."""
    rows = []
    for item, told in zip(fit.measurements, fit.fitted_s, strict=True):
        rows.append((item, told / item.seconds - 1))
    rows.sort(key=lambda row: -abs(row[1]) if math.isfinite(row[1]) else 0.0)
    return [
        (f"{item.first}–{item.end - 1}", shape_text(item.shape), short_time(item.seconds), error)
        for item, error in rows[:count]
    ]
