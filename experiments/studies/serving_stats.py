"""Seeds into means with confidence intervals, ratios between policies, and capacities."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from experiments.studies.jobs import Row

CONFIDENCE = 0.95
LEAST_MEAN, LEAST_P10 = 0.5, 0.3
"""A point counts for a maximum only where slob has at least this mean and p10 of satisfaction."""
GOOD_MEAN, GOOD_P10 = 0.9, 0.5
"""What a load must have to lie within the capacity."""

AVERAGED = (
    "mean_satisfaction", "p10_satisfaction", "p1_satisfaction", "relative_satisfaction", "ttft_p50_s", "ttft_p99_s",
    "tpot_p50_s", "tpot_p99_s", "num_unfinished", "num_rejected", "queue_drift_s", "goodput", "bubble_share",
    "utilisation", "padding_waste",
)  # fmt: skip
"""Columns of which curves hold the mean over seeds."""


@dataclass(frozen=True, slots=True)
class PointKey:
    """A point of a study without its seed.

    Attributes
    ----------
    cluster, preset, engine
        Names.
    load
        Offered concurrency.
    """

    cluster: str
    preset: str
    engine: str
    load: float

    def __str__(self) -> str:
        return f"{self.cluster}, {self.preset}, {self.engine}, load {self.load:g}"


Samples = dict[PointKey, dict[str, list[Row]]]
"""For each point and policy the rows of its seeds, in the order of the seeds."""


def samples_of(rows: Iterable[Row], role: str = "claims") -> Samples:
    """Return rows of kind ``"point"`` by point and policy, of the sweeps of a role."""
    found: Samples = {}
    chosen = (row for row in rows if row["kind"] == "point" and row.get("role", "claims") == role)
    for row in sorted(chosen, key=lambda row: int(row["seed"])):
        key = PointKey(row["cluster"], row["preset"], row["engine"], float(row["load"]))
        found.setdefault(key, {}).setdefault(row["policy"], []).append(row)
    return found


def mean_of(rows: Sequence[Mapping[str, float]], column: str) -> float:
    """Return the mean of a column over seeds."""
    return float(np.mean([row[column] for row in rows]))


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % confidence interval of the mean (Student's t); ``None`` with one value.

    Examples
    --------
    >>> round(half_width([1.0, 2.0, 3.0]), 3)
    2.484
    """
    if len(values) < 2:
        return None
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(student.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * spread


def ratio_of_means(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float | None]:
    """Return the ratio of two means of paired seeds, and half the width of its 95 % interval.

    The interval is the delta method's: that of ``ours - ratio * theirs``, over the mean of theirs; ``None`` with one
    seed. Where theirs is 0 the ratio is infinite.
    """
    mine, other = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if other.mean() <= 0:
        return math.inf, None
    ratio = float(mine.mean() / other.mean())
    wide = half_width((mine - ratio * other).tolist())
    return ratio, None if wide is None else wide / float(other.mean())


def curve_rows(samples: Samples) -> list[Row]:
    """Return a row of kind ``"curve"`` per point and policy: means over seeds, interval of mean satisfaction."""
    rows = []
    for key, policies in samples.items():
        for policy, seeds in policies.items():
            wide = half_width([row["mean_satisfaction"] for row in seeds])
            row: Row = {
                "kind": "curve",
                "cluster": key.cluster,
                "preset": key.preset,
                "engine": key.engine,
                "load": key.load,
                "rate_per_s": seeds[0]["rate_per_s"],
                "policy": policy,
                "num_seeds": len(seeds),
                "satisfaction_half_width": wide,
            }
            rows.append(row | {name: mean_of(seeds, name) for name in AVERAGED})
    return rows


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better slob is than another policy at a point.

    Attributes
    ----------
    point, policy
        Where, and than whom.
    value, half_width
        Ratio of mean satisfactions over seeds, and half its 95 % interval (``None`` with one seed).
    slob_mean, slob_p10, other_mean
        Means over seeds.
    counts
        Whether slob serves well enough there for the ratio to count for a maximum.
    """

    point: PointKey
    policy: str
    value: float
    half_width: float | None
    slob_mean: float
    slob_p10: float
    other_mean: float
    counts: bool

    def as_row(self) -> Row:
        """Return a row of kind ``"ratio"``; an infinite ratio is null."""
        return {
            "kind": "ratio",
            "cluster": self.point.cluster,
            "preset": self.point.preset,
            "engine": self.point.engine,
            "load": self.point.load,
            "policy": self.policy,
            "ratio": self.value if math.isfinite(self.value) else None,
            "half_width": self.half_width,
            "slob_mean": self.slob_mean,
            "slob_p10": self.slob_p10,
            "other_mean": self.other_mean,
            "counts": self.counts,
        }


def ratios_of(samples: Samples, policy: str, ours: str = "slob") -> list[Ratio]:
    """Return the ratio of slob to a policy at every point that has both."""
    found = []
    for key, policies in samples.items():
        if ours not in policies or policy not in policies:
            continue
        mine, other = policies[ours], policies[policy]
        value, wide = ratio_of_means(
            [row["mean_satisfaction"] for row in mine], [row["mean_satisfaction"] for row in other]
        )
        mean, p10 = mean_of(mine, "mean_satisfaction"), mean_of(mine, "p10_satisfaction")
        counts = mean >= LEAST_MEAN and p10 >= LEAST_P10 and math.isfinite(value)
        other_mean = mean_of(other, "mean_satisfaction")
        found.append(Ratio(key, policy, value, wide, mean, p10, other_mean, counts))
    return found


def capacities(samples: Samples, policy: str) -> dict[tuple[str, str, str], float | None]:
    """Return, by cluster, preset and engine, the largest load that a policy serves well; ``None`` where none is.

    Between the last load that is good and the first that isn't, mean and p10 are taken to fall in straight lines over
    the logarithm of the load. Where all loads are good it's the largest of them, a lower bound.
    """
    curves: dict[tuple[str, str, str], list[tuple[float, float, float]]] = {}
    for key, policies in samples.items():
        if policy in policies:
            rows = policies[policy]
            curve = curves.setdefault((key.cluster, key.preset, key.engine), [])
            curve.append((key.load, mean_of(rows, "mean_satisfaction"), mean_of(rows, "p10_satisfaction")))
    return {place: _capacity(sorted(curve)) for place, curve in curves.items()}


def _capacity(curve: Sequence[tuple[float, float, float]]) -> float | None:
    last: tuple[float, float, float] | None = None
    for load, mean, p10 in curve:
        if mean < GOOD_MEAN or p10 < GOOD_P10:
            if last is None:
                return None
            shares = [
                (before - least) / (before - after) if after < least else 1.0
                for before, after, least in ((last[1], mean, GOOD_MEAN), (last[2], p10, GOOD_P10))
            ]
            return float(last[0] * (load / last[0]) ** min(shares))
        last = (load, mean, p10)
    return None if last is None else last[0]


def is_stable(rows: Sequence[Row]) -> bool:
    """Return whether a policy keeps up at a point: all is delivered, and late requests don't queue longer than early.

    The mean queueing time of the last quarter of arrivals may exceed that of the second quarter by a second.
    """
    return mean_of(rows, "num_unfinished") == 0 and mean_of(rows, "queue_drift_s") <= 1.0
