"""Parsers of numeric options: a number within limits, else one sentence with what was found and expected."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import typer

MAX_TOKENS = 10_000_000
"""Most tokens of a prompt, an output or a context. Chosen: ten times the longest context of today's models."""
MAX_IN_FLIGHT = 65_536
"""Most sequences in flight. Chosen: far beyond what any card holds."""
MAX_MICRO_BATCHES = 1_024
"""Most micro-batches of a pipeline. Chosen: each is a shape that planners look at."""
MAX_SEED = 2**31 - 1
"""Largest seed that all solvers take."""
MAX_WORKERS = 1_024
"""Most threads or processes. Chosen."""


def whole(least: int, most: int) -> Callable[[object], int]:
    """Return a parser of whole numbers from `least` to `most`; it raises typer.BadParameter."""

    def parse(text: object) -> int:
        given = str(text).strip()
        value = int(given) if re.fullmatch(r"[+-]?\d{1,30}", given) else None
        if value is None or not least <= value <= most:
            raise typer.BadParameter(f"found {given!r}, expected a whole number from {least} to {most:,}")
        return value

    return parse


def number(
    *, least: float | None = None, above: float | None = None, most: float | None = None
) -> Callable[..., float]:
    """Return a parser of finite numbers within limits (`least` and `most` are within); raises as :func:`whole`."""
    limits = [
        *([] if above is None else [f"above {above:g}"]),
        *([] if least is None else [f"of at least {least:g}"]),
        *([] if most is None else [f"at most {most:g}"]),
    ]
    expected = f"a number {' and '.join(limits)}"

    def parse(text: object) -> float:
        given = str(text).strip()
        try:
            value = float(given)
        except ValueError:
            value = math.nan
        is_within = (
            math.isfinite(value)
            and (above is None or value > above)
            and (least is None or value >= least)
            and (most is None or value <= most)
        )
        if not is_within:
            raise typer.BadParameter(f"found {given!r}, expected {expected}")
        return value

    return parse
