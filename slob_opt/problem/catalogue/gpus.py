"""GPU facts: datasheet numbers and the share of them that kernels achieve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from slob_opt.problem.catalogue.lookup import plain, read_data, unknown
from slob_opt.problem.device import ComputeProfile, Device


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One type of GPU, as software sees it (one of two dies of an MI250X, one of four GPUs of an A16).

    Attributes
    ----------
    id, name, vendor, arch, form_factor
        Catalogue id and what the vendor calls it.
    memory_bytes
        Nominal memory, bytes; the vendor's GB read as GiB.
    memory_reported_bytes
        Memory that the driver reports, bytes; ``None`` when no source was at hand.
    bytes_per_s
        Peak memory bandwidth, bytes/s.
    fp16_flops, bf16_flops
        Dense matrix peak with fp32 accumulation, FLOP/s; fp16 of cards without matrix cores is the vector peak, and
        ``None`` means that bf16 is not supported.
    fp32_flops
        Vector peak, FLOP/s.
    has_matrix_cores
        Whether the card has tensor or matrix cores.
    nvlink_bytes_per_s
        GPU-to-GPU link of one card, one direction, bytes/s; ``None`` when there is none.
    pcie_bytes_per_s
        PCIe, one direction, bytes/s.
    tdp_w
        Power limit, watts.
    year
        Year of introduction.
    profile
        Achieved shares and overheads; its `source` says whether they're measured on this card or inferred.
    aliases
        Other spellings that find this entry.
    sources, uncertain, notes
        Where the facts come from, which fields to treat with care, and remarks.
    """

    id: str
    name: str
    vendor: str
    arch: str
    form_factor: str
    memory_bytes: int
    memory_reported_bytes: int | None
    bytes_per_s: float
    fp16_flops: float
    bf16_flops: float | None
    fp32_flops: float
    has_matrix_cores: bool
    nvlink_bytes_per_s: float | None
    pcie_bytes_per_s: float
    tdp_w: float
    year: int
    profile: ComputeProfile
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    uncertain: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def usable_bytes(self) -> int:
        """Memory that a program sees, bytes: what the driver reports, or the nominal size when that isn't known."""
        return self.memory_bytes if self.memory_reported_bytes is None else self.memory_reported_bytes


@dataclass(frozen=True, slots=True)
class _GpuTable:
    by_id: Mapping[str, GpuFacts]
    by_spelling: Mapping[str, str]
    ambiguous: frozenset[str]


def _facts(row: Mapping[str, Any], profiles: Mapping[str, ComputeProfile], sources: tuple[str, ...]) -> GpuFacts:
    def rate(key: str) -> float | None:
        return None if row[key] is None else float(row[key])

    return GpuFacts(
        id=row["id"],
        name=row["name"],
        vendor=row["vendor"],
        arch=row["arch"],
        form_factor=row["form_factor"],
        memory_bytes=row["memory_bytes"],
        memory_reported_bytes=row["memory_reported_bytes"],
        bytes_per_s=float(row["bytes_per_s"]),
        fp16_flops=float(row["fp16_flops"]),
        bf16_flops=rate("bf16_flops"),
        fp32_flops=float(row["fp32_flops"]),
        has_matrix_cores=row["has_matrix_cores"],
        nvlink_bytes_per_s=rate("nvlink_bytes_per_s"),
        pcie_bytes_per_s=float(row["pcie_bytes_per_s"]),
        tdp_w=float(row["tdp_w"]),
        year=row["year"],
        profile=profiles[row["profile"]],
        aliases=tuple(row["aliases"]),
        sources=sources,
        uncertain=tuple(row["uncertain"]),
        notes=tuple(row["notes"]),
    )


@cache
def _table() -> _GpuTable:
    data = read_data("gpus.json")
    profiles = {name: ComputeProfile(**values) for name, values in data["profiles"].items()}
    sources = (*data["sources"], data["overhead_source"])
    by_id = {row["id"]: _facts(row, profiles, sources) for row in data["gpus"]}
    spellings: dict[str, str] = {}
    for facts in by_id.values():
        for spelling in (facts.id, facts.name, *facts.aliases):
            spellings.setdefault(plain(spelling), facts.id)
    spellings |= {plain(id_): id_ for id_ in by_id}  # an id always means itself
    ambiguous = frozenset(plain(alias) for row in data["gpus"] for alias in row["ambiguous_aliases"])
    return _GpuTable(MappingProxyType(by_id), MappingProxyType(spellings), ambiguous)


def gpu_ids() -> tuple[str, ...]:
    """Return all catalogue ids of GPUs, oldest series first."""
    return tuple(_table().by_id)


def gpu(name: str) -> GpuFacts:
    """Return the facts of a GPU by id or alias, as ``a100-sxm4-40gb``, ``A100-40G``, ``RTX 4090`` or ``Tesla T4``.

    Raises
    ------
    InputError
        When no entry has this name; the nearest ones are named.
    """
    table = _table()
    found = table.by_spelling.get(plain(name))
    if found is None:
        raise unknown("GPU", name, (*table.by_id, *(a for f in table.by_id.values() for a in f.aliases)))
    return table.by_id[found]


def is_ambiguous_gpu(name: str) -> bool:
    """Return whether several variants answer to this name, as to ``A100``; `gpu` then returns the usual reading."""
    return plain(name) in _table().ambiguous


def gpu_device(name: str, device_name: str) -> Device:
    """Return a card of a catalogue type.

    Its memory is what the driver reports where that is known, else the nominal size; its peak is that of fp16.

    Parameters
    ----------
    name
        Id or alias of the type.
    device_name
        Name of the card in its cluster.

    Raises
    ------
    InputError
        When the type is unknown.
    """
    facts = gpu(name)
    return Device(device_name, facts.id, facts.usable_bytes, facts.fp16_flops, facts.bytes_per_s, facts.profile)
