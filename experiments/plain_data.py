"""Frozen dataclasses of the problem as plain JSON and back, exactly: what a plan file carries of its inputs.

Unlike the files that people write, numbers stand in internal units (bytes, seconds, FLOP/s), so nothing is rounded and
the cost table built from them has the same fingerprint.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import groupby
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from experiments.registry import nearest
from slob_opt.errors import InputError
from slob_opt.problem.device import OMIT_DEFAULT

T = TypeVar("T")

REPEAT = "repeat"
"""Key that stands for equal neighbours in a list: eighty equal layers are written once."""


def encode(value: object) -> Any:
    """Return a dataclass, tuple, mapping or plain value as JSON values.

    Examples
    --------
    >>> from slob_opt.problem.device import Link
    >>> encode((Link(1e9, 0.001), Link(1e9, 0.001)))
    [{'bytes_per_s': 1000000000.0, 'latency_s': 0.001, 'repeat': 2}]
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: encode(getattr(value, item.name))
            for item in fields(value)
            if not (item.metadata.get(OMIT_DEFAULT) and getattr(value, item.name) == item.default)
        }
    if isinstance(value, tuple):
        return _encode_tuple(value)
    if isinstance(value, Mapping):  # keys are pairs of names
        return [{"between": list(pair), "value": encode(item)} for pair, item in sorted(value.items())]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return int(value)  # drops a spelling
    if isinstance(value, float):
        return float(value)
    raise InputError(f"{type(value).__name__} can't be written into a plan file")


def _encode_tuple(value: tuple[object, ...]) -> list[Any]:
    if not value or not is_dataclass(value[0]):
        return [encode(item) for item in value]
    written = []
    for item, equal in groupby(value):
        count = sum(1 for _ in equal)
        plain = encode(item)
        written.append(plain | {REPEAT: count} if count > 1 else plain)
    return written


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def decode(kind: type[T], data: object, key: str = "") -> T:
    """Return the value of a type out of JSON values.

    Parameters
    ----------
    kind
        A dataclass whose fields are plain values, other such classes, tuples, or mappings by pairs of names.
    data
        What :func:`encode` gave.
    key
        Where `data` stands, for messages.

    Raises
    ------
    InputError
        When a key is unknown or missing, or a value is of the wrong kind; the error's key says where.
    """
    found: T = _decode(kind, data, key)
    return found


def _decode(kind: Any, data: object, key: str) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_optional(kind, data, key)
    if origin is tuple:
        return _decode_tuple(get_args(kind), data, key)
    if origin is not None and issubclass(origin, Mapping):
        return _decode_pairs(get_args(kind)[1], data, key)
    if is_dataclass(kind):
        return _decode_dataclass(kind, data, key)
    return _decode_plain(kind, data, key)


def _decode_optional(kind: Any, data: object, key: str) -> Any:
    inner = [part for part in get_args(kind) if part is not type(None)]
    if data is None and len(inner) < len(get_args(kind)):
        return None
    return _decode(inner[0], data, key)


def _decode_tuple(parts: tuple[Any, ...], data: object, key: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise InputError(f"found {_short(data)}, expected a list", key=key)
    values: list[Any] = []
    for index, item in enumerate(data):
        count = 1
        if isinstance(item, dict) and REPEAT in item:
            count = item[REPEAT]
            if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 100_000:
                raise InputError(f"found {count!r}, expected a whole number from 1", key=f"{key}[{index}].{REPEAT}")
        plain = {k: v for k, v in item.items() if k != REPEAT} if isinstance(item, dict) else item
        values += [_decode(parts[0], plain, f"{key}[{index}]")] * count
    return tuple(values)


def _decode_pairs(kind: Any, data: object, key: str) -> dict[tuple[str, str], Any]:
    if not isinstance(data, list):
        raise InputError(f"found {_short(data)}, expected a list", key=key)
    pairs: dict[tuple[str, str], Any] = {}
    for index, item in enumerate(data):
        where = f"{key}[{index}]"
        ends = item.get("between") if isinstance(item, dict) else None
        if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, str) for end in ends):
            raise InputError(f"found {_short(item)}, expected between and value", key=where)
        pairs[ends[0], ends[1]] = _decode(kind, item.get("value"), f"{where}.value")
    return pairs


def _decode_dataclass(kind: Any, data: object, key: str) -> Any:
    if not isinstance(data, dict):
        raise InputError(f"found {_short(data)}, expected the keys of {kind.__name__}", key=key)
    names = [item.name for item in fields(kind)]
    prefix = f"{key}." if key else ""
    for name in data:
        if name not in names:
            raise InputError(f"unknown key{nearest(str(name), names)}", key=f"{prefix}{name}")
    hints = _hints(kind)
    given = {name: _decode(hints[name], data[name], f"{prefix}{name}") for name in names if name in data}
    missing = [item.name for item in fields(kind) if item.name not in given and not item.metadata.get(OMIT_DEFAULT)]
    if missing:
        raise InputError("the key is missing", key=f"{prefix}{missing[0]}")
    try:
        return kind(**given)
    except InputError as error:
        raise error.located(key=key or None) from error


def _decode_plain(kind: Any, data: object, key: str) -> Any:
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    if kind is float and is_number and math.isfinite(float(data)):  # type: ignore[arg-type]  # a number, see above
        return data if isinstance(data, int) else float(data)  # type: ignore[arg-type]
    if kind is int and isinstance(data, int) and not isinstance(data, bool):
        return data
    if kind in (str, bool) and isinstance(data, kind):
        return data
    raise InputError(f"found {_short(data)}, expected a value of type {kind.__name__}", key=key)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
