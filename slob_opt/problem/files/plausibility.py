"""Warnings about inputs that are legal but look like a slip of units."""

from __future__ import annotations

import warnings

from slob_opt.errors import PlausibilityWarning
from slob_opt.problem.catalogue import GpuFacts
from slob_opt.units import SpelledFloat, SpelledInt, format_bytes, format_flops, format_rate, format_seconds

NIC_GBPS = (1, 2.5, 5, 10, 20, 25, 40, 50, 56, 100, 200, 400, 800)
"""Rates that network cards are sold with, Gb/s."""

CARD_GB = (4, 6, 8, 10, 11, 12, 16, 20, 22, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 192, 256, 288)
"""Memory that GPUs are sold with: the label says GB, the card has as many GiB. Those of the catalogue, and consumer,
workstation and data-centre cards that it lacks (data sheets, 2016 to 2025)."""


def warn(message: str, *, file: str, key: str) -> None:
    """Emit a PlausibilityWarning that names file and key."""
    warnings.warn(f"{file}: {key}: {message}", PlausibilityWarning, stacklevel=2)


def check_memory(memory_bytes: int, facts: GpuFacts | None, *, file: str, key: str) -> None:
    """Warn when a card's memory looks like GB for GiB, is above its type's, or is of no card there is."""
    if facts is not None:
        nominal = facts.memory_bytes
        gib = nominal // 2**30
        if memory_bytes == gib * 10**9:
            shown = format_bytes(memory_bytes)
            text = f"{shown} is 7 % below the nominal {gib}GiB of {facts.id}; write {gib}GiB if that's meant"
            warn(text, file=file, key=key)
        elif memory_bytes > nominal:
            text = f"{format_bytes(memory_bytes)} is above the nominal {gib}GiB of {facts.id}"
            warn(text, file=file, key=key)
        elif _is_label(memory_bytes):
            _warn_of_label(memory_bytes, file, key)
        elif memory_bytes < nominal // 20:
            text = f"{format_bytes(memory_bytes)} is far below the nominal {gib}GiB of {facts.id}"
            warn(text, file=file, key=key)
    elif memory_bytes > 400 * 2**30:
        warn(f"{format_bytes(memory_bytes)} is more than any single GPU has (288GiB)", file=file, key=key)
    elif _is_label(memory_bytes):
        _warn_of_label(memory_bytes, file, key)
    elif memory_bytes < 2**29:
        warn(f"{format_bytes(memory_bytes)} is less than any GPU for LLMs has (a few GiB)", file=file, key=key)


def check_card_speed(
    bandwidth: float | None, flops: float | None, facts: GpuFacts | None, *, file: str, key: str
) -> None:
    """Warn when memory bandwidth or peak of a card are of no card there is, or far from its type's."""
    if bandwidth is not None:
        off = facts is not None and not 0.25 < bandwidth / facts.bytes_per_s < 2
        if off or not 1e10 <= bandwidth <= 3e13 or _is_bits(bandwidth):
            usual = "200GB/s to 8TB/s" if facts is None else f"{format_rate(facts.bytes_per_s)} for {facts.id}"
            text = f"{_shown(bandwidth)} is an unusual memory bandwidth (usual: {usual}, bytes not bits)"
            warn(text, file=file, key=f"{key}.bandwidth")
    if flops is not None:
        off = facts is not None and not 0.1 < flops / facts.fp16_flops < 2.5
        if off or not 1e11 <= flops <= 1e16:
            usual = "5TFLOPS to 2.5PFLOPS" if facts is None else f"{format_flops(facts.fp16_flops)} for {facts.id}"
            text = f"{format_flops(flops)} is an unusual dense 16-bit peak (usual: {usual}; sparse figures are double)"
            warn(text, file=file, key=f"{key}.flops")


def check_layer_time(seconds: float, *, file: str, key: str) -> None:
    """Warn when one layer of one token takes a time that no card needs."""
    if not 1e-6 <= seconds <= 1.0:
        warn(f"{format_seconds(seconds)} per layer and token is unusual (usual: 20us to 50ms)", file=file, key=key)


def check_network(bytes_per_s: float, latency_s: float, *, file: str, key: str) -> None:
    """Warn when a link between machines looks like GB/s for Gbps, or its latency like a slip of units."""
    gbytes = bytes_per_s / 1e9
    if bytes_per_s > 1.25e11 or (
        gbytes >= 5 and any(abs(gbytes - nic) < 1e-9 for nic in NIC_GBPS) and not _is_bits(bytes_per_s)
    ):
        hint = f"network cards are sold in bits, write {gbytes:g}Gbps if that's meant"
        text = f"{_shown(bytes_per_s)} is {gbytes * 8:g}Gbps; {hint}"
        warn(text, file=file, key=f"{key}.bandwidth")
    elif bytes_per_s < 1e5:
        warn(f"{_shown(bytes_per_s)} is slower than any network for serving", file=file, key=f"{key}.bandwidth")
    if latency_s > 0.5:
        warn(f"{format_seconds(latency_s)} is a long latency (usual: 5us to 100ms)", file=file, key=f"{key}.latency")


def check_bus(bytes_per_s: float, latency_s: float, *, file: str, key: str) -> None:
    """Warn when a link inside a machine looks like Gbps for GB/s, or its latency like a slip of units."""
    if bytes_per_s < 2e9 or (bytes_per_s < 9e9 and _is_bits(bytes_per_s)):
        text = f"{_shown(bytes_per_s)} is slow for a link inside a machine (PCIe: 8GB/s to 63GB/s, NVLink more)"
        warn(text, file=file, key=f"{key}.bandwidth")
    elif bytes_per_s > 2e12:
        warn(f"{_shown(bytes_per_s)} is faster than any link between GPUs", file=file, key=f"{key}.bandwidth")
    if latency_s > 5e-3:
        warn(
            f"{format_seconds(latency_s)} is long inside a machine (usual: 5us to 50us)",
            file=file,
            key=f"{key}.latency",
        )


def _is_bits(rate: float) -> bool:
    """Whether a rate was written in bits."""
    return isinstance(rate, SpelledFloat) and "b" in rate.text


def _is_label(memory_bytes: int) -> bool:
    """Whether a memory was written in GB (10^9 bytes) with a number that stands on cards' labels."""
    is_decimal = isinstance(memory_bytes, SpelledInt) and memory_bytes.text.endswith("GB")
    return is_decimal and any(memory_bytes == size * 10**9 for size in CARD_GB)


def _warn_of_label(memory_bytes: int, file: str, key: str) -> None:
    size = memory_bytes // 10**9
    text = (
        f"{format_bytes(memory_bytes)} is taken as {memory_bytes / 2**30:.2f}GiB, but a card sold as {size} GB has "
        f"{size}GiB; write {size}GiB if that's meant, else {size}000MB"
    )
    warn(text, file=file, key=key)


def _shown(rate: float) -> str:
    return format_rate(rate)
