"""Messages as bytes: a kind, plain JSON, and arrays as they are in memory. Nothing in a message is ever executed.

A frame is 16 bytes of head (magic, version, kind, lengths of the two parts), a JSON object, and the bytes of its arrays
one after the other. The JSON object names each array's type and shape.
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

HEAD = struct.Struct("!4sHHII")
MAGIC, VERSION = b"SLoB", 1

MAX_JSON_BYTES, MAX_ARRAY_BYTES = 1 << 24, 1 << 31
"""A longer frame is none of ours."""

TYPES = {"int64": 8, "int32": 4, "uint8": 1, "float32": 4, "bool": 1}
"""Types of arrays; tensors of other types travel as uint8 and say what they are."""


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
        By name.
    """

    kind: int
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def pack(frame: Frame) -> list[bytes | memoryview]:
    """Return a frame as parts to be sent one after the other.

    Raises
    ------
    EngineError
        When an array has another type than :data:`TYPES`, or the frame is too long.
    """
    described, parts, size = [], [], 0
    for name, array in frame.arrays.items():
        if array.dtype.name not in TYPES:
            raise EngineError(f"array {name} of a message has type {array.dtype}, expected one of {', '.join(TYPES)}")
        whole = np.ascontiguousarray(array)
        described.append([name, whole.dtype.name, list(whole.shape)])
        if whole.nbytes:
            parts.append(whole.reshape(-1).view(np.uint8).data)
        size += whole.nbytes
    text = json.dumps([frame.values, described], separators=(",", ":")).encode()
    if len(text) > MAX_JSON_BYTES or size > MAX_ARRAY_BYTES:
        raise EngineError(f"a message of {len(text) + size:,} bytes is too long")
    return [HEAD.pack(MAGIC, VERSION, frame.kind, len(text), size) + text, *parts]


def head_of(data: bytes | bytearray | memoryview) -> tuple[int, int, int]:
    """Return kind and lengths of the two parts from a frame's first 16 bytes.

    Raises
    ------
    EngineError
        When they aren't those of a frame.
    """
    magic, version, kind, text_size, array_size = HEAD.unpack(data)
    if magic != MAGIC:
        raise EngineError("the other end doesn't speak our protocol")
    if version != VERSION:
        raise EngineError(f"the other end speaks version {version} of the protocol, this one {VERSION}")
    if text_size > MAX_JSON_BYTES or array_size > MAX_ARRAY_BYTES:
        raise EngineError(f"the other end announces a message of {text_size + array_size:,} bytes")
    return kind, text_size, array_size


def unpack(kind: int, text: bytes | bytearray | memoryview, data: bytearray) -> Frame:
    """Return the frame of its parts; its arrays are views of `data`.

    Raises
    ------
    EngineError
        When the parts contradict each other.
    """
    try:
        values, described = json.loads(bytes(text))
        arrays: dict[str, NDArray[Any]] = {}
        at = 0
        for name, kind_name, shape in described:
            count = 1
            for length in shape:
                if type(length) is not int or length < 0:
                    raise ValueError(f"shape {shape}")
                count *= length
            size = count * TYPES[kind_name]
            if at + size > len(data):
                raise ValueError(f"array {name} goes beyond the message")
            arrays[name] = np.frombuffer(data, np.dtype(kind_name), count, at).reshape(shape)
            at += size
        if at != len(data) or not isinstance(values, dict):
            raise ValueError("bytes are left over")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EngineError(f"a message of kind {kind} is damaged: {error}") from error
    return Frame(kind, values, arrays)
