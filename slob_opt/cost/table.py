"""One frozen table of times and bytes that all planners read.

Times are multiples of :data:`TICK_S` = 2^-30 s (0.93 ns). Sums of such numbers are exact in float64 up to 2^23 s, so
the order of addition never changes a value, relabelling devices never changes a plan's worth, and a solver that works
in integer ticks works with the very same numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TICK_S = 2.0**-30
"""Resolution of every time in a table, seconds."""

_FOR_PEOPLE = frozenset({"weight_bits", "logits_bytes"})
"""Fields that only texts are made from."""


def to_ticks(seconds: float) -> int:
    """Return the number of ticks of a table time; raises InputError when it isn't a whole number of them."""
    ticks = round(seconds / TICK_S)
    if ticks * TICK_S != seconds:
        raise InputError(f"{seconds!r} s is not a whole number of ticks of 2^-30 s")
    return ticks


def quantise(seconds: FloatArray | float) -> FloatArray:
    """Return times rounded to the nearest tick (half a tick is 0.47 ns)."""
    return np.asarray(np.rint(np.asarray(seconds, dtype=np.float64) / TICK_S) * TICK_S)


@dataclass(frozen=True)
class CostTable:
    """Everything a planner needs to know of cluster, model and traffic.

    R rows are iteration shapes: row 0 is one decode token (the `interval` objective), rows 1 and on carry
    ``batch_sizes[row]`` decode tokens and their share of prefill (the `throughput` objective). D planning devices are
    cards or tensor-parallel groups; C classes are sets of devices with equal times and bytes; L layers.
    A stage of class c that executes ``[first, end)`` in shape r takes
    ``fixed_s[r, c] + layer_s[r, c, first:end].sum() + (first == 0) * embed_s[r, c] + (end == L) * head_s[r, c]`` and,
    with q sequences in flight, holds ``workspace_bytes[r, c] + weight_bytes[c, first:end].sum()
    + q * kv_bytes[c, first:end].sum() + (first == 0) * embed_bytes[c] + (end == L) * head_bytes[r, c]
    - (both) * tied_saving_bytes[c]`` bytes a card.

    Attributes
    ----------
    device_names
        (D,) names of planning devices.
    device_cards
        (D,) indices into ``Cluster.devices`` of each planning device's cards; devices that share a card exclude each
        other.
    device_node
        (D,) int, index of the node.
    device_class
        (D,) int, class of the device.
    class_names
        (C,) names.
    batch_sizes
        (R,) decode tokens of the shape.
    fixed_s, embed_s, head_s
        (R, C) float64, seconds.
    layer_s
        (R, C, L) float64, seconds.
    capacity_bytes, embed_bytes, tied_saving_bytes
        (C,) int64, bytes a card.
    workspace_bytes, head_bytes
        (R, C) int64, bytes a card; the head with its logits buffer.
    weight_bytes, kv_bytes
        (C, L) int64, bytes a card; KV for one sequence of the profile's context.
    link_class
        (D, D) int, class of the link from row to column; -1 on the diagonal and inside a group.
    hop_s, occupancy_s, return_s, return_occupancy_s
        (R, number of link classes) float64, seconds: time and link occupancy of a hop with activations, and of the hop
        that returns token ids from the last stage to the first.
    hop_bytes, return_bytes
        (R,) int64, bytes of those two messages.
    nic_bytes_per_s
        (number of nodes,) float64, capacity of a node's network card per direction; ``inf`` where links are dedicated.
    kv_mode
        ``"safe"`` reserves the full context for sliding-window layers, ``"tight"`` only the window.
    weight_bits
        Bits that a weight is stored in; ``None`` when bytes were given that no bits stand behind. Told to people: no
        plan and no fingerprint depends on it.
    logits_bytes
        (R,) int64, bytes of `head_bytes` that are no weights; ``None`` when not known. Told to people, as above.
    """

    device_names: tuple[str, ...]
    device_cards: tuple[tuple[int, ...], ...]
    device_node: IntArray
    device_class: IntArray
    class_names: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    fixed_s: FloatArray
    layer_s: FloatArray
    embed_s: FloatArray
    head_s: FloatArray
    capacity_bytes: IntArray
    workspace_bytes: IntArray
    weight_bytes: IntArray
    kv_bytes: IntArray
    embed_bytes: IntArray
    head_bytes: IntArray
    tied_saving_bytes: IntArray
    link_class: IntArray
    hop_s: FloatArray
    occupancy_s: FloatArray
    return_s: FloatArray
    return_occupancy_s: FloatArray
    hop_bytes: IntArray
    return_bytes: IntArray
    nic_bytes_per_s: FloatArray
    kv_mode: str = "safe"
    weight_bits: float | None = None
    logits_bytes: IntArray | None = None

    def __post_init__(self) -> None:
        rows, classes, layers = self.layer_s.shape
        devices = len(self.device_names)
        expected = {
            "device_node": (devices,), "device_class": (devices,), "fixed_s": (rows, classes),
            "embed_s": (rows, classes), "head_s": (rows, classes), "capacity_bytes": (classes,),
            "workspace_bytes": (rows, classes), "weight_bytes": (classes, layers), "kv_bytes": (classes, layers),
            "embed_bytes": (classes,), "head_bytes": (rows, classes), "tied_saving_bytes": (classes,),
            "link_class": (devices, devices), "hop_bytes": (rows,), "return_bytes": (rows,),
        }  # fmt: skip
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise InputError(f"{name} has shape {getattr(self, name).shape}, expected {shape}")
        if self.logits_bytes is not None and self.logits_bytes.shape != (rows,):
            raise InputError(f"logits_bytes has shape {self.logits_bytes.shape}, expected {(rows,)}")
        if self.weight_bits is not None and self.weight_bits <= 0:
            raise InputError(f"weight_bits is {self.weight_bits}, expected above zero")
        if len(self.batch_sizes) != rows or self.batch_sizes[0] != 1:
            raise InputError("batch_sizes needs one entry a row, the first being 1")
        if len(self.device_cards) != devices or len(self.class_names) != classes:
            raise InputError("device_cards and class_names need one entry a device and a class")
        cards = [set(held) for held in self.device_cards]
        for source, target in zip(*np.nonzero(self.link_class < 0), strict=True):
            if not cards[source] & cards[target]:
                names = f"{self.device_names[source]} to {self.device_names[target]}"
                raise InputError(f"link_class has no link from {names}, which share no card")
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                if item.name.endswith("_s") and item.name != "nic_bytes_per_s":
                    if not np.all(np.isfinite(value)) or np.any(value < 0):
                        raise InputError(f"{item.name} has negative or non-finite times")
                    if np.any(value != quantise(value)):
                        raise InputError(f"{item.name} has times that are no multiple of 2^-30 s; use quantise()")
                value.setflags(write=False)

    def with_weight_bits(self, bits: int) -> CostTable | None:
        """Return the table with the bytes that weights of `bits` bits take; ``None`` when today's bits are not known.

        Times stay as they are. Embedding and head shrink with the layers where `logits_bytes` tells what isn't weights,
        else they stay as well. Bytes are rounded up.
        """
        if self.weight_bits is None:
            return None
        ratio = Fraction(bits) / Fraction(self.weight_bits)

        def scaled(size: IntArray) -> IntArray:
            exact = [-(-int(x) * ratio.numerator // ratio.denominator) for x in size.flat]
            return np.array(exact, np.int64).reshape(size.shape)

        lighter = replace(self, weight_bits=float(bits), weight_bytes=scaled(self.weight_bytes))
        if self.logits_bytes is None:
            return lighter
        logits = self.logits_bytes[:, None]
        return replace(
            lighter,
            embed_bytes=scaled(self.embed_bytes),
            head_bytes=scaled(self.head_bytes - logits) + logits,
            tied_saving_bytes=scaled(self.tied_saving_bytes),
        )

    @property
    def num_devices(self) -> int:
        """D, the planning devices."""
        return len(self.device_names)

    @property
    def num_layers(self) -> int:
        """L, the layers of the model."""
        return int(self.layer_s.shape[2])

    @property
    def num_classes(self) -> int:
        """C, the device classes."""
        return len(self.class_names)

    @cached_property
    def num_cards(self) -> int:
        """One more than the largest card index."""
        return 1 + max(c for cards in self.device_cards for c in cards)

    @cached_property
    def has_exclusive_devices(self) -> bool:
        """Whether no two planning devices share a card."""
        return sum(len(c) for c in self.device_cards) == len({c for cards in self.device_cards for c in cards})

    @cached_property
    def has_identical_layers(self) -> bool:
        """Whether every layer has the same times and bytes on each class, so that a count of layers says it all."""
        return bool(
            np.all(self.layer_s == self.layer_s[:, :, :1])
            and np.all(self.weight_bytes == self.weight_bytes[:, :1])
            and np.all(self.kv_bytes == self.kv_bytes[:, :1])
        )

    @cached_property
    def has_uniform_links(self) -> bool:
        """Whether every link between devices that may be used together is of one class."""
        off_diagonal = self.link_class[self.link_class >= 0]
        return off_diagonal.size == 0 or bool(np.all(off_diagonal == off_diagonal[0]))

    @cached_property
    def layer_prefix_s(self) -> FloatArray:
        """(R, C, L + 1) float64, seconds: sum of ``layer_s[..., :l]``, exact because times are whole ticks."""
        zeros = np.zeros((*self.layer_s.shape[:2], 1))
        return np.concatenate([zeros, np.cumsum(self.layer_s, axis=2)], axis=2)

    @cached_property
    def weight_prefix_bytes(self) -> IntArray:
        """(C, L + 1) int64, bytes: sum of ``weight_bytes[:, :l]``."""
        return np.concatenate([np.zeros((self.num_classes, 1), np.int64), np.cumsum(self.weight_bytes, axis=1)], axis=1)

    @cached_property
    def kv_prefix_bytes(self) -> IntArray:
        """(C, L + 1) int64, bytes: sum of ``kv_bytes[:, :l]``."""
        return np.concatenate([np.zeros((self.num_classes, 1), np.int64), np.cumsum(self.kv_bytes, axis=1)], axis=1)

    @cached_property
    def device_of_cards(self) -> dict[frozenset[int], int]:
        """Planning device by its set of cards."""
        return {frozenset(cards): d for d, cards in enumerate(self.device_cards)}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over all fields that plans depend on, hex."""
        digest = hashlib.sha256()
        for item in fields(self):
            if item.name in _FOR_PEOPLE:
                continue
            value = getattr(self, item.name)
            digest.update(item.name.encode())
            is_array = isinstance(value, np.ndarray)
            digest.update(np.ascontiguousarray(value).tobytes() if is_array else repr(value).encode())
        return digest.hexdigest()

    def row_of_batch(self, batch_size: int) -> int:
        """Return the throughput row of a batch size; raises InputError when it isn't in the grid."""
        try:
            return self.batch_sizes.index(batch_size, 1)
        except ValueError:
            raise InputError(f"batch size {batch_size} is not in the table's grid {self.batch_sizes[1:]}") from None

    def stage_s(self, row: int, device: int, first: int, end: int) -> float:
        """Return the time of a stage in one iteration, seconds."""
        c = int(self.device_class[device])
        prefix = self.layer_prefix_s[row, c]
        total = float(self.fixed_s[row, c] + prefix[end] - prefix[first])
        if first == 0:
            total += float(self.embed_s[row, c])
        if end == self.num_layers:
            total += float(self.head_s[row, c])
        return total

    def stage_memory(self, row: int, device: int, first: int, end: int, sequences: int) -> dict[str, int]:
        """Return the bytes a card of the stage holds, by part; their sum must not exceed `capacity_bytes`."""
        c = int(self.device_class[device])
        is_first, is_last = first == 0, end == self.num_layers
        parts = {
            "workspace": int(self.workspace_bytes[row, c]),
            "weights": int(self.weight_prefix_bytes[c, end] - self.weight_prefix_bytes[c, first]),
            "kv": sequences * int(self.kv_prefix_bytes[c, end] - self.kv_prefix_bytes[c, first]),
            "embedding": int(self.embed_bytes[c]) if is_first else 0,
            "head": int(self.head_bytes[row, c]) if is_last else 0,
        }
        if is_first and is_last:
            parts["head"] -= int(self.tied_saving_bytes[c])
        return parts
