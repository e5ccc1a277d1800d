"""Claims and figures from numbers: medians, quantiles, targets, and rows that only inform."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from experiments.study_contract import Claim

TINY_PCT = 1e-4
"""Per cent that count as 0: the tolerance of "optimal", 1e-6 relative, as per cent."""

Comparison = Literal["<=", ">=", "=="]


def claim(id_: str, value: float | None, unit: str, comparison: Comparison, limit: float) -> Claim:
    """Return a claim held against a limit; ``None`` as value means that this run could not measure it.

    Examples
    --------
    >>> claim("gap.instances", 12, "", ">=", 300).holds
    False
    """
    target = f"{comparison} {limit:g}"
    if value is None:
        return Claim(id_, None, unit, target, None)
    slack = TINY_PCT if unit == "%" else 0.0
    holds = {
        "<=": value <= limit + slack,
        ">=": value >= limit,
        "==": value == limit,
    }[comparison]
    return Claim(id_, float(value), unit, target, bool(holds))


def figure(name: str, value: float | None, unit: str, note: str = "") -> dict[str, Any]:
    """Return a row of kind ``"figure"``: a number that is reported without a target."""
    return {
        "kind": "figure",
        "name": name,
        "value": None if value is None else float(value),
        "unit": unit,
        "note": note,
    }


def median(values: Sequence[float]) -> float | None:
    """Return the median, ``None`` of nothing."""
    return statistics.median(values) if values else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest of the values that at least a share of them does not exceed, ``None`` of nothing."""
    return float(np.quantile(np.asarray(values, dtype=np.float64), share, method="inverted_cdf")) if values else None


def largest(values: Sequence[float]) -> float | None:
    """Return the largest value, ``None`` of nothing."""
    return max(values, default=None)
