"""Strict reading of JSON objects in trace files: unknown, missing and wrong keys are told by name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from slob_opt.errors import InputError

T = TypeVar("T")

Reader = Callable[[object], T]
"""Returns the value that JSON holds; raises InputError with what was found and expected."""

_MOST = 1 << 63
"""Whole numbers stay below, so that they fit int64."""


def wrong(value: object, expected: str) -> InputError:
    """Return the error for a value of another kind."""
    text = repr(value)
    return InputError(f"found {text if len(text) <= 60 else text[:57] + '...'}, expected {expected}")


def text(value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise wrong(value, "a text")
    return value


def whole(value: object) -> int:
    """Return a whole number from 0."""
    if type(value) is not int or not 0 <= value < _MOST:
        raise wrong(value, "a whole number from 0")
    return value


def number(value: object) -> float:
    """Return a finite number."""
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]  # a number, as just checked
        raise wrong(value, "a finite number")
    return float(value)  # type: ignore[arg-type]  # the same


def items(value: object) -> list[object]:
    """Return a list."""
    if not isinstance(value, list):
        raise wrong(value, "a list")
    return value


def texts(value: object) -> tuple[str, ...]:
    """Return a list of texts."""
    return tuple(text(item) for item in items(value))


def wholes(value: object) -> tuple[int, ...]:
    """Return a list of whole numbers from 0."""
    found = items(value)
    for item in found:
        if type(item) is not int or not 0 <= item < _MOST:
            raise wrong(item, "whole numbers from 0")
    return tuple(found)  # type: ignore[arg-type]  # whole numbers, as just checked


def text_pairs(value: object) -> tuple[tuple[str, str], ...]:
    """Return the pairs of an object whose values are texts."""
    if not isinstance(value, dict):
        raise wrong(value, "an object of texts")
    return tuple((key, text(item)) for key, item in value.items())


def optional(read: Reader[T]) -> Reader[T | None]:
    """Return a reader that takes null for ``None`` as well."""
    return lambda value: None if value is None else read(value)


@dataclass(frozen=True, slots=True)
class Fields:
    """The keys of a JSON object.

    Attributes
    ----------
    data
        The object; it has the expected keys and no other.
    where
        Dotted path of the object; empty for a line.
    """

    data: dict[str, Any]
    where: str

    @classmethod
    def of(cls, data: object, names: Sequence[str], where: str = "") -> Fields:
        """Return the fields of an object; raises InputError unless it has all of these keys and no other."""
        if not isinstance(data, dict):
            raise InputError(f"found {type(data).__name__}, expected an object", key=where or None)
        dot = f"{where}." if where else ""
        for name in data:
            if name not in names:
                close = difflib.get_close_matches(name, names, 1)
                hint = f"; did you mean {close[0]}?" if close else f", expected {', '.join(names)}"
                raise InputError(f"unknown key{hint}", key=f"{dot}{name}")
        for name in names:
            if name not in data:
                raise InputError("the key is missing", key=f"{dot}{name}")
        return cls(data, where)

    def get(self, name: str, read: Reader[T]) -> T:
        """Return a value; raises InputError with its key where it is of another kind."""
        try:
            return read(self.data[name])
        except InputError as error:
            raise error.located(key=f"{self.where}.{name}" if self.where else name) from error

    def make(self, build: Callable[[], T]) -> T:
        """Return what `build` makes; adds the object's key to what it raises."""
        try:
            return build()
        except InputError as error:
            raise error.located(key=self.where or None) from error
