"""Devices (single cards) and links between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from slob_opt.errors import InputError
from slob_opt.problem.measured import MeasuredProfile
from slob_opt.problem.ranges import require_non_negative, require_positive

__all__ = ["ComputeProfile", "Device", "Link", "require_non_negative", "require_positive"]

OMIT_DEFAULT = "omit_default"
"""Mark of a field that is left out of files where it has its default, so that older files and new ones are equal."""


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """What share of its datasheet a device achieves, and its fixed overheads.

    One kernel of `flops` FLOP that moves `num_bytes` takes
    ``t0 + ((flops / (gemm_compute_eff * peak)) ** p + (num_bytes / (gemm_mem_eff * bandwidth)) ** p) ** (1 / p)``.

    Attributes
    ----------
    gemm_compute_eff, gemm_mem_eff
        Achieved share of peak FLOP/s and of peak memory bandwidth in GEMMs, in (0, 1].
    gemm_t0_s
        Fixed time of one GEMM kernel, seconds.
    p_norm
        Exponent that blends compute and memory time; large values give the plain roofline maximum.
    attn_mem_eff
        Achieved share of memory bandwidth in decode attention.
    attn_t0_s
        Fixed time of one attention kernel, seconds.
    attn_compute_eff
        Achieved share of peak FLOP/s in prefill attention.
    comm_t0_s
        Fixed time of one tensor-parallel all-reduce, seconds.
    layer_overhead_s, step_overhead_s
        Engine time per layer and per iteration outside the kernels, seconds.
    source
        ``"measured"`` or ``"inferred"``, with the origin of the numbers.
    """

    gemm_compute_eff: float = 0.78
    gemm_mem_eff: float = 0.80
    gemm_t0_s: float = 5e-6
    p_norm: float = 2.0
    attn_mem_eff: float = 0.78
    attn_t0_s: float = 13e-6
    attn_compute_eff: float = 0.40
    comm_t0_s: float = 10e-6
    layer_overhead_s: float = 32e-6
    step_overhead_s: float = 126e-6
    source: str = "inferred"

    def __post_init__(self) -> None:
        for name in ("gemm_compute_eff", "gemm_mem_eff", "attn_mem_eff", "attn_compute_eff", "p_norm"):
            require_positive(getattr(self, name), name)
        for name in ("gemm_t0_s", "attn_t0_s", "comm_t0_s", "layer_overhead_s", "step_overhead_s"):
            require_non_negative(getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class Device:
    """One card.

    Attributes
    ----------
    name
        Unique within the cluster, as ``node0/1``.
    gpu
        Catalogue id or free name of the card's type.
    memory_bytes
        Device memory, bytes.
    peak_flops
        Dense matrix peak for 16-bit inputs, FLOP/s.
    bytes_per_s
        Peak memory bandwidth, bytes/s.
    profile
        Achieved shares and overheads.
    layer_time_s
        Measured seconds for one token of one layer in decode at batch 1, when the type is known only by
        such a measurement; the cost model then scales linearly from it. ``None`` uses the roofline.
    measured
        Times measured with one model, which stand in place of the roofline; ``None`` without a measurement.
    """

    name: str
    gpu: str
    memory_bytes: int
    peak_flops: float
    bytes_per_s: float
    profile: ComputeProfile = ComputeProfile()
    layer_time_s: float | None = None
    measured: MeasuredProfile | None = field(default=None, metadata={OMIT_DEFAULT: True})

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("a device needs a name")
        require_positive(self.memory_bytes, f"memory_bytes of device {self.name}")
        require_positive(self.peak_flops, f"peak_flops of device {self.name}")
        require_positive(self.bytes_per_s, f"bytes_per_s of device {self.name}")
        if self.layer_time_s is not None:
            require_positive(self.layer_time_s, f"layer_time_s of device {self.name}")
        if self.layer_time_s is not None and self.measured is not None:
            raise InputError(f"device {self.name} has a layer_time and a measured profile, expected one of them")


@dataclass(frozen=True, slots=True)
class Link:
    """A directed connection: ``latency_s + num_bytes / bytes_per_s`` seconds a message.

    Attributes
    ----------
    bytes_per_s
        Bandwidth, bytes/s.
    latency_s
        Fixed time of a message, seconds.
    """

    bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        require_positive(self.bytes_per_s, "bandwidth of a link")
        require_non_negative(self.latency_s, "latency of a link")
