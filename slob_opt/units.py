"""Parsing and printing of quantities with units: sizes, rates, times, FLOP/s.

Files and screens write units; everything inside is bytes, bytes/s, seconds and FLOP/s. A parsed quantity is a plain
number that also remembers how it was written, so that a file which is read and printed again keeps its units.

>>> parse_rate("10Gbps") == parse_rate("1.25GB/s") == parse_rate("1250 MB/s") == 1.25e9
True
>>> str(parse_rate("10Gbps")), format_rate(1.25e9), format_bytes(24 * 2**30), format_seconds(5e-5)
('10Gbps', '1.25GB/s', '24GiB', '50us')
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from slob_opt.errors import InputError

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S.*?)?\s*")
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_MAX_DIGITS, _MAX_EXPONENT = 64, 400  # every float fits; keeps exact arithmetic from huge exponents


class SpelledFloat(float):
    """A float that remembers how it was written; equal to, and computed with as, the plain number.

    Attributes
    ----------
    text
        The spelling, as ``10Gbps``; ``str`` returns it, ``repr`` and arithmetic are the plain number's.
    """

    text: str

    def __new__(cls, value: float, text: str) -> SpelledFloat:
        """Return `value` with its spelling."""
        made = super().__new__(cls, value)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    def __getnewargs__(self) -> tuple[float, str]:  # type: ignore[override]  # float's own takes no spelling
        return float(self), self.text


class SpelledInt(int):
    """An integer that remembers how it was written; equal to, and computed with as, the plain number.

    Attributes
    ----------
    text
        The spelling, as ``24GiB``; ``str`` returns it, ``repr`` and arithmetic are the plain number's.
    """

    text: str

    def __new__(cls, value: int, text: str) -> SpelledInt:
        """Return `value` with its spelling."""
        made = super().__new__(cls, value)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]  # int's own takes no spelling
        return int(self), self.text


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of quantity: what to call it, an example to suggest, its units, and slips worth a word of their own."""

    what: str
    example: str
    units: Mapping[str, Fraction]
    slips: Mapping[str, str]


def _size_kind() -> _Kind:
    units = {f"{p}B": Fraction(f) for p, f in (_DECIMAL | _BINARY).items()}
    slips = {f"{p}b": f"{p}b is bits; memory is written in bytes, as {p}B or {p}iB" for p in "kKMGT"}
    slips |= {p: f"write {p.upper()}B (10^n) or {p.upper()}iB (2^n)" for p in "kKmMgGtT"}
    slips |= {s: f"write {s[0].upper()}B (10^n) or {s[0].upper()}iB (2^n)" for s in ("kb", "mb", "gb", "tb")}
    return _Kind("a size", "24GiB (2^30 bytes) or 24GB (10^9 bytes)", units, slips)


def _rate_kind() -> _Kind:
    units: dict[str, Fraction] = {}
    for prefix, factor in (_DECIMAL | _BINARY).items():
        units |= {f"{prefix}B{per}": Fraction(factor) for per in ("/s", "ps")}
        units |= {f"{prefix}{bit}": Fraction(factor, 8) for bit in ("bps", "b/s", "bit/s", "bits/s")}
    slips = {
        f"{p}{tail}": f"it may mean bits or bytes; write {p.upper()}bps for bits or {p.upper()}B/s for bytes"
        for p in "mgt"
        for tail in ("bps", "b/s", "bit/s", "bits/s")
    }
    slips |= {f"{p}B": f"a rate is per second; write {p}B/s" for p in (*_DECIMAL, *_BINARY)}
    slips |= {f"{p}b": f"a rate is per second; write {p}bps" for p in _DECIMAL}
    return _Kind("a rate", "10Gbps (bits) or 1.25GB/s (bytes)", units, slips)


def _time_kind() -> _Kind:
    scale = {"s": 1, "ms": 10**-3, "us": 10**-6, "µs": 10**-6, "μs": 10**-6, "ns": 10**-9, "min": 60}
    exact = {unit: Fraction(str(factor)) for unit, factor in scale.items()}
    return _Kind("a time", "3ms, 50us or 1s", exact, {"m": "it may mean minutes; write min, or ms for milliseconds"})


def _flops_kind() -> _Kind:
    tails = ("FLOPS", "FLOP/s", "FLOPs", "FLOPs/s")
    units = {f"{p}{tail}": Fraction(f) for p, f in _DECIMAL.items() for tail in tails}
    slips = {f"{p}FLOP": f"a rate is per second; write {p}FLOP/s" for p in _DECIMAL}
    return _Kind("a rate of operations", "312TFLOPS", units, slips)


_SIZE, _RATE, _TIME, _FLOPS = _size_kind(), _rate_kind(), _time_kind(), _flops_kind()


def _parse(value: object, kind: _Kind, *, allow_zero: bool) -> tuple[Fraction, str]:
    if isinstance(value, SpelledFloat | SpelledInt):
        value = value.text
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"found {value!r}, expected {kind.what} with its unit, as {kind.example}")
    text = str(value).strip()
    if re.match(r"[+-]?\.?(nan|inf)", text, re.IGNORECASE):
        raise InputError(f"found {text!r}, expected a finite number with its unit, as {kind.example}")
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InputError(f"found {text!r}, expected {kind.what} with its unit, as {kind.example}")
    number, unit = match.group(1), match.group(2)
    if unit is None:
        raise InputError(f"found {text!r} without a unit, expected {kind.what} with its unit, as {kind.example}")
    factor = kind.units.get(unit)
    if factor is None:
        hint = kind.slips.get(unit, f"write it as {kind.example}")
        raise InputError(f"found {text!r}, the unit {unit!r} is not known for {kind.what}: {hint}")
    mantissa, _, exponent = number.lower().partition("e")
    if len(mantissa) > _MAX_DIGITS or len(exponent) > 8 or abs(int(exponent or 0)) > _MAX_EXPONENT:
        raise InputError(f"found {text!r}, expected {kind.what} of a plausible magnitude, as {kind.example}")
    exact = Fraction(number) * factor
    if abs(exact) > 10**300:  # near the end of floats
        raise InputError(f"found {text!r}, expected {kind.what} of a plausible magnitude, as {kind.example}")
    if exact < 0 or (exact == 0 and not allow_zero):
        least = "at least zero" if allow_zero else "above zero"
        raise InputError(f"found {text!r}, expected {kind.what} {least}, as {kind.example}")
    return exact, text


def parse_bytes(value: object, *, allow_zero: bool = False) -> SpelledInt:
    """Return a size in bytes; a fraction of a byte is dropped.

    Parameters
    ----------
    value
        Text such as ``24GiB``, ``24 GB`` or ``512MiB``; GiB is 2^30 bytes, GB is 10^9.
    allow_zero
        Whether zero is a size.

    Raises
    ------
    InputError
        Without a unit, with an unknown one, below (or at) zero, or not finite.
    """
    exact, text = _parse(value, _SIZE, allow_zero=allow_zero)
    if 0 < exact < 1:
        raise InputError(f"found {text!r}, expected at least one byte")
    return SpelledInt(math.floor(exact), text)


def parse_rate(value: object, *, allow_zero: bool = False) -> SpelledFloat:
    """Return a rate in bytes/s from ``10Gbps``, ``10Gb/s``, ``1.25GB/s`` or ``1250 MB/s`` (all the same).

    Raises
    ------
    InputError
        As for :func:`parse_bytes`; lower-case ``gbps`` is refused because it's read as bits and as bytes.
    """
    exact, text = _parse(value, _RATE, allow_zero=allow_zero)
    return SpelledFloat(float(exact), text)


def parse_seconds(value: object, *, allow_zero: bool = False) -> SpelledFloat:
    """Return a time in seconds from ``3ms``, ``50us``, ``1s`` or ``2min``.

    Raises
    ------
    InputError
        As for :func:`parse_bytes`.
    """
    exact, text = _parse(value, _TIME, allow_zero=allow_zero)
    return SpelledFloat(float(exact), text)


def parse_flops(value: object, *, allow_zero: bool = False) -> SpelledFloat:
    """Return a rate in FLOP/s from ``312TFLOPS`` or ``312 TFLOP/s``.

    Raises
    ------
    InputError
        As for :func:`parse_bytes`.
    """
    exact, text = _parse(value, _FLOPS, allow_zero=allow_zero)
    return SpelledFloat(float(exact), text)


def _format(value: float, kind: _Kind, units: tuple[str, ...], what: str) -> str:
    """Return the first spelling, largest unit first, that is short and parses back to exactly `value`."""
    if isinstance(value, SpelledFloat | SpelledInt) and _spells(value, kind):
        return value.text
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{what} is {value!r}, expected a finite number of at least zero")
    for unit in units:
        scaled = float(Fraction(value) / kind.units[unit])
        number = f"{scaled:.6g}"
        if scaled >= 1 and "e" not in number and _value(number, unit, kind, value) == value:
            return number + unit
    return f"{value!r}{units[-1]}"


def _value(number: str, unit: str, kind: _Kind, like: float) -> float:
    exact = Fraction(number) * kind.units[unit]
    return math.floor(exact) if isinstance(like, int) else float(exact)


def _spells(value: SpelledFloat | SpelledInt, kind: _Kind) -> bool:
    """Whether the spelling is one of this kind; a size printed as a rate must not keep it."""
    match = _NUMBER.fullmatch(value.text)
    return match is not None and match.group(2) in kind.units


def format_bytes(value: int) -> str:
    """Return a size as text that parses back to the same number: as written, else in the largest exact unit."""
    return _format(value, _SIZE, ("TiB", "GiB", "GB", "MiB", "MB", "KiB", "kB", "B"), "a size")


def format_rate(value: float) -> str:
    """Return a rate (bytes/s) as text that parses back to the same number: as written, else in bytes per second."""
    return _format(value, _RATE, ("TB/s", "GB/s", "MB/s", "kB/s", "B/s"), "a rate")


def format_seconds(value: float) -> str:
    """Return a time (seconds) as text that parses back to the same number: as written, else in the largest unit."""
    return _format(value, _TIME, ("s", "ms", "us", "ns", "s"), "a time")


def format_flops(value: float) -> str:
    """Return FLOP/s as text that parses back to the same number: as written, else in the largest unit."""
    return _format(value, _FLOPS, ("PFLOPS", "TFLOPS", "GFLOPS", "FLOPS"), "a rate of operations")
