"""Messages as bytes: a kind, plain JSON, and arrays as they are in memory. Nothing in a message is ever executed.

A frame is a head of 24 bytes, its info, and the bytes of its arrays, each at a multiple of 8. The info is a table of
the arrays (name, type, shape) and a JSON object, which is absent when it's empty: what is sent with every step is in
arrays, since writing and reading JSON takes longer than sending it. Numbers of the head and the table are big-endian,
arrays little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import EngineError

_HEAD = struct.Struct("!4sHHIIQ")
HEAD_BYTES = _HEAD.size
MAGIC, VERSION = b"SLoB", 2

MAX_INFO_BYTES, MAX_ARRAY_BYTES = 1 << 24, 1 << 31
"""A longer frame is none of ours."""

ALIGNMENT = 8
"""Arrays and the info take multiples of so many bytes."""

_TYPES = tuple(np.dtype(name) for name in ("<i8", "<i4", "u1", "<f4", "?", "<f8"))
_CODES = {dtype: code for code, dtype in enumerate(_TYPES)}
_SIZES = struct.Struct("!IH")
_ENTRY = struct.Struct("!BBB")
_MAX_DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    Attributes
    ----------
    kind
        What it is.
    values
        Plain JSON.
    arrays
        By name. Tensors of types that numpy lacks travel as uint8 and say what they are.
    """

    kind: int
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Head:
    """What a frame's first bytes say.

    Attributes
    ----------
    kind
        Of the frame.
    info_bytes, array_bytes
        Sizes of what follows.
    ring_at
        Where in the shared ring the arrays are; ``None`` when they follow behind the info.
    """

    kind: int
    info_bytes: int
    array_bytes: int
    ring_at: int | None = None

    def pack(self) -> bytes:
        """Return the head as bytes."""
        place = 0 if self.ring_at is None else self.ring_at + 1
        return _HEAD.pack(MAGIC, VERSION, self.kind, self.info_bytes, self.array_bytes, place)


def pack(frame: Frame) -> tuple[bytes, list[memoryview], int]:
    """Return a frame's info, the bytes of its arrays with pads between them, and how many these are together.

    Raises
    ------
    EngineError
        When an array's type can't be sent, or the frame is too long.
    """
    table, parts, size = [b""], [], 0
    for name, array in frame.arrays.items():
        code = _CODES.get(array.dtype)
        if code is None or array.ndim > _MAX_DIMENSIONS:
            known = ", ".join(dtype.name for dtype in _TYPES)
            raise EngineError(f"array {name} of a message has type {array.dtype}, expected one of {known}")
        label = name.encode()
        table.append(_ENTRY.pack(len(label), code, array.ndim) + label + struct.pack(f"!{array.ndim}Q", *array.shape))
        if array.nbytes:
            whole = np.ascontiguousarray(array)
            parts.append(whole.reshape(-1).view(np.uint8).data)
            pad = -whole.nbytes % ALIGNMENT
            if pad:
                parts.append(memoryview(bytes(pad)))
            size += whole.nbytes + pad
    text = json.dumps(frame.values, separators=(",", ":")).encode() if frame.values else b""
    table[0] = _SIZES.pack(len(text), len(frame.arrays))
    info = b"".join([*table, text])
    info += bytes(-len(info) % ALIGNMENT)
    if len(info) > MAX_INFO_BYTES or size > MAX_ARRAY_BYTES:
        raise EngineError(f"a message of {len(info) + size:,} bytes is too long")
    return info, parts, size


def head_of(data: bytes | bytearray | memoryview) -> Head:
    """Return what a frame's first bytes say.

    Raises
    ------
    EngineError
        When they aren't those of a frame.
    """
    magic, version, kind, info_bytes, array_bytes, place = _HEAD.unpack(data)
    if magic != MAGIC:
        raise EngineError("the other end doesn't speak our protocol")
    if version != VERSION:
        raise EngineError(f"the other end speaks version {version} of the protocol, this one {VERSION}")
    if info_bytes > MAX_INFO_BYTES or array_bytes > MAX_ARRAY_BYTES:
        raise EngineError(f"the other end announces a message of {info_bytes + array_bytes:,} bytes")
    return Head(kind, info_bytes, array_bytes, place - 1 if place else None)


def unpack(kind: int, info: bytes | bytearray | memoryview, data: NDArray[np.uint8]) -> Frame:
    """Return the frame of its parts; its arrays are views of `data`.

    Raises
    ------
    EngineError
        When the parts contradict each other.
    """
    try:
        text_size, count = _SIZES.unpack_from(info, 0)
        at, arrays, used = _SIZES.size, {}, 0
        for _ in range(count):
            label_size, code, dimensions = _ENTRY.unpack_from(info, at)
            at += _ENTRY.size
            name = str(info[at : at + label_size], "utf-8")
            at += label_size
            if dimensions > _MAX_DIMENSIONS:
                raise ValueError(f"array {name} has {dimensions} dimensions")
            shape = struct.unpack_from(f"!{dimensions}Q", info, at)
            at += 8 * dimensions
            dtype, length = _TYPES[code], 1
            for width in shape:
                length *= width
            if used + length * dtype.itemsize > data.size:
                raise ValueError(f"array {name} goes beyond the message")
            arrays[name] = np.frombuffer(data, dtype, length, used).reshape(shape)
            used += length * dtype.itemsize
            used += -used % ALIGNMENT
        if used != data.size or len(info) != at + text_size + -(at + text_size) % ALIGNMENT:
            raise ValueError("its sizes don't add up")
        values = json.loads(bytes(info[at : at + text_size])) if text_size else {}
        if not isinstance(values, dict):
            raise ValueError("its values have no names")
    except (ValueError, IndexError, TypeError, RecursionError, OverflowError, struct.error) as error:
        raise EngineError(f"a message of kind {kind} is damaged: {error}") from error
    return Frame(kind, values, arrays)
