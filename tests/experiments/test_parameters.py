"""Values of parameters are checked by name and kind, whether they are typed or text."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import pytest

from experiments.parameters import checked, parameters_of
from slob_opt.errors import InputError


@dataclass(frozen=True)
class Inner:
    depth: int = 1


class Mood(StrEnum):
    CALM = "calm"
    WILD = "wild"


@dataclass(frozen=True)
class Made:
    size: int = 4
    share: float = 0.5
    is_on: bool = False
    most: int | None = None
    mood: Mood = Mood.CALM
    inner: Inner = field(default_factory=Inner)
    seed: int = 0
    _kept: int = field(default=0, init=False)


KNOWN = parameters_of(Made, hidden=["seed"])


def test_fields_that_are_arguments_are_parameters_with_their_defaults() -> None:
    assert {name: p.default for name, p in KNOWN.items()} == {
        "size": 4, "share": 0.5, "is_on": False, "most": None, "mood": Mood.CALM, "inner": Inner(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("size", 7, 7), ("size", "7", 7), ("share", 2, 2.0), ("share", "1e-2", 0.01), ("is_on", "yes", True),
        ("is_on", False, False), ("most", None, None), ("most", "none", None), ("most", "3", 3),
        ("inner", Inner(5), Inner(5)), ("mood", "wild", Mood.WILD), ("mood", Mood.WILD, Mood.WILD),
    ],
)  # fmt: skip
def test_values_of_their_kind_are_taken(name: str, given: object, value: object) -> None:
    found = checked("it", {name: given}, KNOWN)[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("size", "seven"), ("size", 7.5), ("size", True), ("share", True), ("share", "nan"), ("share", float("nan")),
        ("is_on", 1), ("is_on", "maybe"), ("size", None), ("inner", "depth=5"), ("mood", "wilder"),
    ],
)  # fmt: skip
def test_values_of_another_kind_are_refused_with_what_was_expected(name: str, given: object) -> None:
    with pytest.raises(InputError, match=f"it: {name} is .*, expected "):
        checked("it", {name: given}, KNOWN)


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(InputError, match="it has no parameter 'sise'; did you mean 'size'"):
        checked("it", {"sise": 1}, KNOWN)
    with pytest.raises(InputError, match="no parameter 'x'; it has none"):
        checked("it", {"x": 1}, {})
