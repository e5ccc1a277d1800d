"""Checks of numbers that are given."""

from __future__ import annotations

import math

from slob_opt.errors import InputError


def require_positive(value: float, what: str) -> None:
    """Raise InputError unless `value` is a finite number above zero."""
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise InputError(f"{what} is {value!r}, expected a finite number above zero")


def require_non_negative(value: float, what: str) -> None:
    """Raise InputError unless `value` is a finite number of at least zero."""
    if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
        raise InputError(f"{what} is {value!r}, expected a finite number of at least zero")
