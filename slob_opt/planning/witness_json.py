"""Witnesses as plain JSON and back; floats keep every bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from slob_opt.errors import InputError
from slob_opt.planning.witness import (
    CapacityWitness,
    EnumerationWitness,
    MemoryWitness,
    PatternWitness,
    RelaxedPriceWitness,
    SubsetWitness,
    ThresholdWitness,
    Witness,
)

_KINDS: dict[str, type[Witness]] = {
    "capacity": CapacityWitness,
    "memory": MemoryWitness,
    "pattern": PatternWitness,
    "relaxed_price": RelaxedPriceWitness,
    "threshold": ThresholdWitness,
    "subset": SubsetWitness,
    "enumeration": EnumerationWitness,
}


def witness_to_json(witness: Witness) -> dict[str, Any]:
    """Return a witness as plain JSON with its ``type``.

    Examples
    --------
    >>> witness_to_json(ThresholdWitness("pattern"))
    {'type': 'threshold', 'kind': 'pattern'}
    """
    name = next(name for name, kind in _KINDS.items() if type(witness) is kind)
    return {"type": name, **{f.name: _plain(getattr(witness, f.name)) for f in fields(witness)}}


def witness_from_json(data: Mapping[str, Any]) -> Witness:
    """Return the witness in plain JSON.

    Raises
    ------
    InputError
        When the type is unknown, or a field is missing, unknown or of the wrong kind; the key says which.
    """
    name = data.get("type")
    if not isinstance(name, str) or name not in _KINDS:
        raise InputError(f"found {name!r}, expected one of {', '.join(sorted(_KINDS))}", key="type")
    kind = _KINDS[name]
    given = {key: value for key, value in data.items() if key != "type"}
    known = {f.name: str(f.type) for f in fields(kind)}
    for key in given:
        if key not in known:
            raise InputError(f"unknown key; a {name} witness has {', '.join(known)}", key=key)
    for key in known:
        if key not in given:
            raise InputError(f"the key {key!r} is missing", key=key)
    readers = {key: _READERS[annotation] for key, annotation in known.items()}
    return kind(**{key: readers[key](given[key], key) for key in known})


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"found {value!r}, expected text", key=key)
    return value


def _whole(value: Any, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"found {value!r}, expected a whole number", key=key)
    return value


def _number(value: Any, key: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"found {value!r}, expected a number", key=key)
    return float(value)


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise InputError(f"found {value!r}, expected a list", key=key)
    return list(value)


def _numbers(value: Any, key: str) -> tuple[float, ...]:
    return tuple(_number(v, f"{key}[{i}]") for i, v in enumerate(_list(value, key)))


def _counts(value: Any, key: str) -> tuple[tuple[int, ...], ...]:
    rows = [_list(row, f"{key}[{i}]") for i, row in enumerate(_list(value, key))]
    if len({len(row) for row in rows}) > 1:
        raise InputError("the rows differ in length, expected one count a group", key=key)
    return tuple(tuple(_whole(v, f"{key}[{i}]") for v in row) for i, row in enumerate(rows))


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "str": _text,
    "int": _whole,
    "float": _number,
    "tuple[float, ...]": _numbers,
    "tuple[tuple[int, ...], ...]": _counts,
}
