"""From plain data to a checked schema: unknown keys, wrong types and wrong units become one InputError."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from slob_opt.errors import InputError
from slob_opt.units import SpelledFloat, SpelledInt, parse_bytes, parse_flops, parse_rate, parse_seconds

SCHEMA_VERSION = 1
"""Version of all problem files; grows when a key changes its meaning."""


class StrictSchema(BaseModel):
    """Base of all file schemas: unknown keys are errors, nothing is converted silently, values can't change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


class VersionedSchema(StrictSchema):
    """A file with ``schema_version``; a file without it is taken as the newest."""

    schema_version: Literal[1] = 1


def _seconds_or_zero(value: object) -> SpelledFloat:
    return parse_seconds(value, allow_zero=True)


Size = Annotated[SpelledInt, BeforeValidator(parse_bytes)]
"""Bytes, written as ``24GiB``."""
Rate = Annotated[SpelledFloat, BeforeValidator(parse_rate)]
"""Bytes/s, written as ``10Gbps``."""
Seconds = Annotated[SpelledFloat, BeforeValidator(parse_seconds)]
"""Seconds above zero, written as ``3ms``."""
Latency = Annotated[SpelledFloat, BeforeValidator(_seconds_or_zero)]
"""Seconds of at least zero, written as ``3ms``."""
Flops = Annotated[SpelledFloat, BeforeValidator(parse_flops)]
"""FLOP/s, written as ``312TFLOPS``."""

CHOICE = "<choice> "
"""Prefix of the tags that tell the alternatives of a value apart; never part of a key that is shown."""

S = TypeVar("S", bound=BaseModel)


def check(schema: type[S], data: dict[str, Any], *, file: str) -> S:
    """Return the data as an instance of its schema.

    Raises
    ------
    InputError
        For the first fault, unknown keys before others, with file, dotted key, what was found and what was expected;
        further faults are counted.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        faults.sort(key=lambda fault: fault["type"] != "extra_forbidden")
        first = faults[0]
        message = _message(schema, first)
        if len(faults) > 1:
            message += f" (and {len(faults) - 1} more)"
        raise InputError(message, file=file, key=dotted(_plain(first["loc"]))) from error
    except RecursionError as error:
        raise InputError("the file is nested too deeply", file=file) from error


def dotted(location: tuple[int | str, ...]) -> str | None:
    """Return a location as ``nodes[2].gpus``; ``None`` when it's the whole file."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or None


def _plain(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return a location as the file's author sees it, without the tags of a choice between schemas."""
    return tuple(part for part in location if not (isinstance(part, str) and part.startswith(CHOICE)))


def _message(schema: type[BaseModel], fault: ErrorDetails) -> str:
    kind, location = fault["type"], fault["loc"]
    if kind == "extra_forbidden":
        known = _known_keys(schema, location[:-1])
        near = get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"unknown key {location[-1]!r}; {hint}"
    if kind == "missing":
        return f"the key {location[-1]!r} is missing"
    cause = fault.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause.message
    found = fault["input"]
    shown = repr(found) if len(repr(found)) < 60 else f"{repr(found)[:57]}..."
    expected = (
        fault["msg"]
        .replace("Input should be ", "")
        .replace("a valid ", "a ")
        .replace("a integer", "a whole number")
        .replace("Value error, ", "")
    )
    if kind == "string_type" and not isinstance(found, dict | list):
        expected = "text; put it in quotes"
    return f"found {shown}, expected {expected}"


def _known_keys(schema: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the schema at a location knows."""
    at: list[Any] = [schema]
    for part in location:
        if isinstance(part, str):
            fields = [m.model_fields[part].annotation for m in at if _is_schema(m) and part in m.model_fields]
            at = [inner for field in fields for inner in _schemas_in(field)] or at
    return list(dict.fromkeys(key for m in at if _is_schema(m) for key in m.model_fields))


def _schemas_in(annotation: Any) -> list[type[BaseModel]]:
    if _is_schema(annotation):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _schemas_in(argument)]


def _is_schema(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
