"""What was measured of one device with one model: a time for each part of a stage's work.

The time of a stage is linear in what it computes: each part of the work has a coefficient of at least zero, so that
more work never takes less time. Only in the number of computed tokens is it a line with bends, because matrix products
of few rows use a device otherwise than those of many.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from slob_opt.errors import InputError
from slob_opt.problem.model import LayerSpec, ModelSpec
from slob_opt.problem.ranges import require_non_negative, require_positive

DTYPE_BITS = {"float32": 32, "bfloat16": 16, "float16": 16}
"""Bits of the number formats that the runtime computes in."""

CLOCKS = ("cpu", "wall", "cuda")
"""What a profile's times are of: the computing thread, the wall, events on a CUDA device."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """Time of one part of the work.

    Attributes
    ----------
    value_s
        Seconds a unit of it.
    error_s
        Standard error, seconds.
    """

    value_s: float
    error_s: float = 0.0

    def __post_init__(self) -> None:
        require_non_negative(self.value_s, "a measured time")
        require_non_negative(self.error_s, "the standard error of a measured time")


@dataclass(frozen=True, slots=True)
class Slope:
    """Time of each token or row from a number of them on, up to where the next slope begins.

    Attributes
    ----------
    after
        The first token or row that it's for is the one after so many.
    value_s, error_s
        Seconds a token or row, and its standard error.
    """

    after: int
    value_s: float
    error_s: float = 0.0

    def __post_init__(self) -> None:
        if self.after < 0:
            raise InputError(f"a slope begins after {self.after}, expected at least 0")
        require_non_negative(self.value_s, "a measured time")
        require_non_negative(self.error_s, "the standard error of a measured time")


@dataclass(frozen=True, slots=True)
class ModelFingerprint:
    """The numbers of a model that its times depend on.

    Attributes
    ----------
    name
        For messages; models of other names and the same numbers are the same model.
    dtype
        Number format of weights, KV and activations, see :data:`DTYPE_BITS`.
    num_layers, hidden_size, vocab_size
        Of the model.
    attn_params, mlp_params, num_heads, num_kv_heads, head_dim
        Of each layer.

    Examples
    --------
    >>> layer = LayerSpec(67108864, 135266304, 32, 32, 128)
    >>> llama = ModelSpec("llama-2-7b", 4096, 32000, (layer,) * 32, 131072000, 131076096)
    >>> of = ModelFingerprint.of(llama, "float32")
    >>> of.difference(with_dtype(llama, "float32")), of.difference(llama)
    (None, '16-bit weights, measured were 32-bit ones (float32)')
    """

    name: str
    dtype: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    attn_params: int
    mlp_params: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BITS:
            raise InputError(f"dtype is {self.dtype!r}, expected one of {', '.join(DTYPE_BITS)}")

    @classmethod
    def of(cls, model: ModelSpec, dtype: str) -> ModelFingerprint:
        """Return the fingerprint of a model in a number format.

        Raises
        ------
        InputError
            When its layers differ in more than their attention windows, so that one time a layer says too little.
        """
        layer = model.layers[0]
        made = cls(
            model.name, dtype, model.num_layers, model.hidden_size, model.vocab_size,
            layer.attn_params, layer.mlp_params, layer.num_heads, layer.num_kv_heads, layer.head_dim,
        )  # fmt: skip
        for index, other in enumerate(model.layers):
            found = made._layer_difference(other)
            if found is not None or other.is_moe:
                what = found or "experts"
                raise InputError(f"layer {index} of {model.name} has {what}; a profile needs dense layers of one kind")
        return made

    def difference(self, model: ModelSpec) -> str | None:
        """Return in words what a model has otherwise than the measured one; ``None`` when nothing."""
        for name, what in (("num_layers", "layers"), ("hidden_size", "hidden size"), ("vocab_size", "vocabulary")):
            found, expected = getattr(model, name), getattr(self, name)
            if found != expected:
                return f"{what} {found}, measured was {expected}"
        found_layer = self._layer_difference(model.layers[0])
        if found_layer is not None:
            return found_layer
        bits = DTYPE_BITS[self.dtype]
        for name, what in (("weight_bits", "weights"), ("kv_bits", "KV")):
            if getattr(model, name) != bits:
                ones = " ones" if what == "weights" else " KV"
                return f"{getattr(model, name):g}-bit {what}, measured were {bits}-bit{ones} ({self.dtype})"
        return None

    def _layer_difference(self, layer: LayerSpec) -> str | None:
        for name in ("attn_params", "mlp_params", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(layer, name) != getattr(self, name):
                return f"{name} {getattr(layer, name)}, measured was {getattr(self, name)}"
        return None


@dataclass(frozen=True, slots=True)
class HardwareFingerprint:
    """What a profile was measured on.

    Attributes
    ----------
    kind
        ``"cpu"`` or ``"cuda"``.
    name
        Of the processor or the card, as the system tells it.
    threads
        Threads that computed; 1 for CUDA.
    torch
        Version of torch.
    """

    kind: str
    name: str
    threads: int
    torch: str

    def difference(self, found: HardwareFingerprint) -> str | None:
        """Return in words what other hardware has otherwise; ``None`` when nothing."""
        for name in ("kind", "name", "threads", "torch"):
            mine, other = getattr(self, name), getattr(found, name)
            if mine != other:
                return f"{name} {other!r}, measured was {mine!r}"
        return None


@dataclass(frozen=True, slots=True)
class FitQuality:
    """How well a profile tells what was measured, as shares of the measured times.

    Attributes
    ----------
    num_measurements
        Shapes that were measured, each the median of several runs.
    median_error, p95_error
        Of the shapes that it was fitted to.
    held_out_median_error, held_out_p95_error
        Of shapes that a fit to the others foretold.
    """

    num_measurements: int
    median_error: float
    p95_error: float
    held_out_median_error: float
    held_out_p95_error: float

    def __post_init__(self) -> None:
        if self.num_measurements < 1:
            raise InputError(f"{self.num_measurements} measurements, expected at least 1")
        for name in ("median_error", "p95_error", "held_out_median_error", "held_out_p95_error"):
            require_non_negative(getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """Times of one device for one model; see :mod:`slob_opt.cost.profiled` for what they add up to.

    Attributes
    ----------
    model, hardware
        What was measured, and on what.
    step
        Each iteration of a stage.
    layer
        Each layer.
    layer_tokens
        Each computed token of a layer; slopes in order, the first from the first token on, or from the second when
        `layer` has that of the first.
    decode_row, chunk_row
        Each row of a layer's attention that decodes, and that computes part of a prompt.
    kv_token
        Each cached token that a layer's decode attention reads.
    pair
        Each (query, key) pair of a layer's prefill attention.
    embedding, embedding_token
        The first stage, and each of its computed tokens.
    head, head_rows
        The last stage, and each row of logits with its choice of a token, as `layer` and `layer_tokens`.
    fit
        How good it is.
    clock
        One of :data:`CLOCKS`.
    wall_ratio
        Median of wall time over the clock's time, while it was measured.
    framework_bytes
        Memory that the device's framework takes beside weights, KV and activations, bytes.
    slowdown
        The device is emulated: all times are multiplied by it.

    Raises
    ------
    InputError
        When a value is out of its range, or slopes aren't in order.
    """

    model: ModelFingerprint
    hardware: HardwareFingerprint
    step: Coefficient
    layer: Coefficient
    layer_tokens: tuple[Slope, ...]
    decode_row: Coefficient
    chunk_row: Coefficient
    kv_token: Coefficient
    pair: Coefficient
    embedding: Coefficient
    embedding_token: Coefficient
    head: Coefficient
    head_rows: tuple[Slope, ...]
    fit: FitQuality
    clock: str = "cpu"
    wall_ratio: float = 1.0
    framework_bytes: int = 0
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        for name in ("layer_tokens", "head_rows"):
            slopes: tuple[Slope, ...] = getattr(self, name)
            if not slopes or slopes[0].after > 1:
                raise InputError(f"{name} begin later, expected a slope from the first or second one on")
            for a, b in pairwise(slopes):
                if a.after >= b.after:
                    raise InputError(f"{name} have slopes after {a.after} and {b.after}, expected them ascending")
        if self.clock not in CLOCKS:
            raise InputError(f"clock is {self.clock!r}, expected one of {', '.join(CLOCKS)}")
        require_positive(self.wall_ratio, "wall_ratio")
        require_non_negative(self.framework_bytes, "framework_bytes of a profile")
        require_positive(self.slowdown, "slowdown")

    @property
    def knots(self) -> tuple[int, ...]:
        """Computed tokens after which each slope of `layer_tokens` begins."""
        return tuple(slope.after for slope in self.layer_tokens)

    @property
    def head_knots(self) -> tuple[int, ...]:
        """Rows after which each slope of `head_rows` begins."""
        return tuple(slope.after for slope in self.head_rows)

    def scaled(self, factor: float) -> MeasuredProfile:
        """Return the profile of a device that takes `factor` times as long for everything."""
        require_positive(factor, "slowdown")
        return replace(self, slowdown=self.slowdown * factor)


def with_dtype(model: ModelSpec, dtype: str) -> ModelSpec:
    """Return a model whose weights, KV and activations are in one number format.

    Raises
    ------
    InputError
        When the format is unknown.
    """
    if dtype not in DTYPE_BITS:
        raise InputError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPE_BITS)}")
    bits = DTYPE_BITS[dtype]
    return replace(model, weight_bits=bits, kv_bits=bits, activation_bits=bits)
