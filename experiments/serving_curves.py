"""What serving studies show, as data: figures against load with confidence bands, distributions of times, ranking."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

POINT_KEYS = ("cluster", "preset", "engine", "policy", "load", "seed")
"""What a row of kind ``point`` needs to be drawn at all."""

QUANTILES = tuple(range(0, 101, 5))
"""Percentiles that rows hold of TTFT and TPOT."""

CONTESTED_LEAST = 0.5
"""Mean satisfaction of the best policy at the load whose distributions are shown."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The mean over seeds of a figure at one load.

    Attributes
    ----------
    load
        Offered concurrency.
    mean
        Over seeds.
    low, high
        Bounds of the 95 % confidence interval (Student's t); ``None`` with a single seed.
    num_seeds
        Seeds.
    """

    load: float
    mean: float
    low: float | None
    high: float | None
    num_seeds: int


@dataclass(frozen=True, slots=True)
class Curve:
    """A policy's figure against load.

    Attributes
    ----------
    policy
        Label.
    points
        By load.
    """

    policy: str
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A policy's times at one load, pooled over seeds by averaging each percentile.

    Attributes
    ----------
    policy
        Label.
    seconds
        The 0th, 5th, ... 100th percentile.
    """

    policy: str
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """Points of one system, workload and engine.

    Attributes
    ----------
    name
        Shown as title.
    rows
        Points.
    """

    name: str
    rows: tuple[Row, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        """Labels in the order in which they appear first."""
        return tuple(dict.fromkeys(str(row["policy"]) for row in self.rows))

    @property
    def loads(self) -> tuple[float, ...]:
        """Offered concurrencies, rising."""
        return tuple(sorted({float(row["load"]) for row in self.rows}))


@dataclass(frozen=True, slots=True)
class Rank:
    """How a policy does over all contested points.

    Attributes
    ----------
    policy
        Label.
    mean_rank
        Mean place by mean satisfaction among the policies of each point, 1 is best; ties share their places.
    wins
        Points at which no policy is better.
    num_points
        Combinations of system, workload, engine, load and seed at which it ran with others.
    mean_satisfaction, p10_satisfaction
        Mean over these points; ``None`` where no row tells it.
    goodput
        Mean of requests/s that met their targets; ``None`` where no row tells it.
    """

    policy: str
    mean_rank: float
    wins: int
    num_points: int
    mean_satisfaction: float
    p10_satisfaction: float | None
    goodput: float | None


def point_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the rows of kind ``point`` that have :data:`POINT_KEYS`.

    A policy that ran with several sets of parameters is several policies, whose labels tell the parameters.
    """
    found = [row for row in rows if row.get("kind") == "point" and all(row.get(key) is not None for key in POINT_KEYS)]
    variants: dict[object, set[str]] = {}
    for row in found:
        variants.setdefault(row["policy"], set()).add(str(row.get("params")))
    return tuple(
        row if len(variants[row["policy"]]) == 1 else {**row, "policy": f"{row['policy']} {row.get('params')}"}
        for row in found
    )


def panels(rows: Iterable[Row]) -> tuple[Panel, ...]:
    """Return the panels of rows, in the order in which they appear first.

    A sweep's name is part of the title where sweeps share system, workload and engine.
    """
    found: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in point_rows(rows):
        key = (str(row["cluster"]), str(row["preset"]), str(row["engine"]), str(row.get("sweep") or ""))
        found.setdefault(key, []).append(row)
    shared = [key[:3] for key in found]
    made = []
    for key, members in found.items():
        parts = key if shared.count(key[:3]) > 1 and key[3] else key[:3]
        made.append(Panel(" · ".join(parts), tuple(members)))
    return tuple(made)


def has_column(rows: Sequence[Row], column: str) -> bool:
    """Whether some row has a number (or numbers) in a column."""
    return any(row.get(column) is not None for row in rows)


def curves(panel: Panel, column: str) -> tuple[Curve, ...]:
    """Return a figure against load for each policy that has it."""
    made = []
    for policy in panel.policies:
        points = []
        for load in panel.loads:
            values = _values(panel.rows, policy, load, column)
            if values:
                points.append(_point(load, values))
        if points:
            made.append(Curve(policy, tuple(points)))
    return tuple(made)


def _values(rows: Sequence[Row], policy: str, load: float, column: str) -> list[float]:
    found = [row.get(column) for row in rows if row["policy"] == policy and float(row["load"]) == load]
    return [float(value) for value in found if isinstance(value, int | float) and math.isfinite(value)]


def _point(load: float, values: Sequence[float]) -> CurvePoint:
    """Mean and its 95 % confidence interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return CurvePoint(load, mean, None, None, len(values))
    reach = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return CurvePoint(load, mean, mean - reach, mean + reach, len(values))


def contested_load(panel: Panel, column: str = "mean_satisfaction") -> float | None:
    """Return the load at which policies differ most while the best one has at least 0.5, the lowest of equal ones.

    The lowest load where there is none; ``None`` without the column.
    """
    spreads: dict[float, list[float]] = {}
    for curve in curves(panel, column):
        for point in curve.points:
            spreads.setdefault(point.load, []).append(point.mean)
    if not spreads:
        return None
    able = [load for load, means in spreads.items() if max(means) >= CONTESTED_LEAST]
    return max(able, key=lambda load: (max(spreads[load]) - min(spreads[load]), -load)) if able else min(spreads)


def distributions(panel: Panel, column: str, load: float) -> tuple[Distribution, ...]:
    """Return the distribution of a time for each policy that has one at a load.

    Parameters
    ----------
    panel
        Points.
    column
        ``ttft_deciles_s`` or ``tpot_deciles_s``.
    load
        One of the panel's.
    """
    made = []
    for policy in panel.policies:
        found = [
            row[column]
            for row in panel.rows
            if row["policy"] == policy and float(row["load"]) == load and _is_distribution(row.get(column))
        ]
        if found:
            made.append(Distribution(policy, tuple(np.mean(np.array(found, np.float64), axis=0).tolist())))
    return tuple(made)


def _is_distribution(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == len(QUANTILES)
        and all(isinstance(item, int | float) and math.isfinite(item) for item in value)
    )


def ranking(rows: Iterable[Row]) -> tuple[Rank, ...]:
    """Return all policies that met others at some point, the best mean rank first."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for panel in panels(rows):
        for row in panel.rows:
            if isinstance(row.get("mean_satisfaction"), int | float):
                groups.setdefault((panel.name, float(row["load"]), row["seed"]), []).append(row)
    places: dict[str, list[float]] = {}
    members: dict[str, list[Row]] = {}
    wins: dict[str, int] = {}
    for group in groups.values():
        if len(group) < 2:
            continue
        values = [float(row["mean_satisfaction"]) for row in group]
        for row, rank in zip(group, stats.rankdata([-value for value in values]).tolist(), strict=True):
            policy = str(row["policy"])
            places.setdefault(policy, []).append(rank)
            members.setdefault(policy, []).append(row)
            wins[policy] = wins.get(policy, 0) + (float(row["mean_satisfaction"]) == max(values))
    made = [
        Rank(
            policy, float(np.mean(ranks)), wins[policy], len(ranks), _mean(members[policy], "mean_satisfaction") or 0.0,
            _mean(members[policy], "p10_satisfaction"), _mean(members[policy], "goodput"),
        )
        for policy, ranks in places.items()
    ]  # fmt: skip
    return tuple(sorted(made, key=lambda rank: (rank.mean_rank, rank.policy)))


def _mean(rows: Sequence[Row], column: str) -> float | None:
    values = [float(row[column]) for row in rows if isinstance(row.get(column), int | float)]
    return float(np.mean(values)) if values else None
