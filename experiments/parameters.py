"""Parameters of policies and dispatchers: the fields of their classes, checked by name and type before they are set."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

from slob_opt.errors import InputError

_PLAIN = (bool, int, float)
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def nearest(text: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name closest to `text`, else the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(text.lower(), names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f", expected one of {', '.join(names)}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field that may be set.

    Attributes
    ----------
    name
        Of the field.
    kind
        ``bool``, ``int``, ``float`` or a set of words; any other class takes its instances only, never text.
    is_optional
        Whether ``None`` is a value.
    default
        Value that holds when nothing is given.
    """

    name: str
    kind: type
    is_optional: bool
    default: object

    @property
    def kind_name(self) -> str:
        """Kind in words, as error messages and tables have it."""
        if issubclass(self.kind, StrEnum):
            word = f"one of {', '.join(member.value for member in self.kind)}"
            return f"{word} or none" if self.is_optional else word
        word = {bool: "true or false", int: "a whole number", float: "a number"}.get(self.kind, self.kind.__name__)
        return f"{word} or none" if self.is_optional else word


def parameters_of(made: type, hidden: Iterable[str] = ()) -> dict[str, Parameter]:
    """Return the fields of a dataclass that may be set, by name.

    Parameters
    ----------
    made
        The class.
    hidden
        Fields that are no parameters; private ones and those that aren't arguments never are.
    """
    left_out = set(hidden)
    hints = get_type_hints(made)
    found = {}
    for field in dataclasses.fields(made):
        if not field.init or field.name.startswith("_") or field.name in left_out:
            continue
        kind, is_optional = _kind(hints[field.name])
        if not isinstance(kind, type):
            continue
        default: object = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found[field.name] = Parameter(field.name, kind, is_optional, default)
    return found


def _kind(hint: object) -> tuple[Any, bool]:
    """Split ``X | None`` into X and True."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    rest = [part for part in get_args(hint) if part is not type(None)]
    return (rest[0] if len(rest) == 1 else None), len(rest) < len(get_args(hint))


def checked(who: str, given: Mapping[str, object], known: Mapping[str, Parameter]) -> dict[str, object]:
    """Return parameters with values of their kinds; text, as a command line has it, is read.

    Parameters
    ----------
    who
        Whose they are, for messages, such as ``"policy 'chunked'"``.
    given
        Values by name.
    known
        What may be set.

    Raises
    ------
    InputError
        When there is no such parameter, or a value isn't of its kind.
    """
    found = {}
    for name, value in given.items():
        parameter = known.get(name)
        if parameter is None:
            hint = nearest(name, known) if known else "; it has none"
            raise InputError(f"{who} has no parameter {name!r}{hint}")
        found[name] = _value(who, parameter, value)
    return found


def _value(who: str, parameter: Parameter, value: object) -> object:
    """Return a value of the parameter's kind."""
    kind = parameter.kind
    is_text = isinstance(value, str)
    if parameter.is_optional and (value is None or (is_text and str(value).strip().lower() == "none")):
        return None
    read: object = _read(kind, str(value)) if is_text and (kind in _PLAIN or issubclass(kind, StrEnum)) else value
    if kind is float and isinstance(read, int) and not isinstance(read, bool):
        read = float(read)
    is_mistaken = isinstance(read, bool) and kind is not bool  # a bool is an int to Python, not to people
    if is_mistaken or not isinstance(read, kind) or (isinstance(read, float) and math.isnan(read)):
        raise InputError(f"{who}: {parameter.name} is {value!r}, expected {parameter.kind_name}")
    return read


def _read(kind: type, text: str) -> object:
    """Return the number, truth value or word that a text spells; ``None`` when it spells none."""
    if kind is bool:
        return _WORDS.get(text.strip().lower())
    try:
        return kind(text.strip())
    except ValueError:
        return None
