"""Claims and figures of the policies study, from its rows: who is best where policies differ, and what parts bring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.studies.claims import claim, figure
from experiments.studies.jobs import Row
from experiments.studies.serving_stats import PointKey, curve_rows, half_width, mean_of, samples_of
from experiments.study_contract import Claim

CONTESTED = 0.02
"""A point is contested where the worst policy's mean S is more than this share below the best one's."""
TIE = 0.01
"""Within this share of the best is tied with it."""
LEAST_POINTS, LEAST_BEST_PCT, MOST_GAP_PCT = 40, 90.0, 5.0

COLUMNS = ("mean_satisfaction", "p10_satisfaction", "ttft_p99_s")


@dataclass(frozen=True, slots=True)
class Contest:
    """How policies did at one point, means over seeds.

    Attributes
    ----------
    point
        Where.
    means
        Mean satisfaction by policy.
    rivals
        Policies that know no more than slob, without slob.
    """

    point: PointKey
    means: Mapping[str, float]
    rivals: tuple[str, ...]

    @property
    def is_contested(self) -> bool:
        """Whether best and worst differ among slob and its rivals; the clairvoyant yardstick doesn't count."""
        means = [self.means[policy] for policy in ("slob", *self.rivals)]
        return max(means) > 0 and min(means) < (1 - CONTESTED) * max(means)

    @property
    def best_rival(self) -> str:
        """The best of the others that know no more."""
        return max(self.rivals, key=lambda policy: self.means[policy])

    @property
    def gap(self) -> float:
        """By which share slob is below the best rival; below zero where it's above."""
        best = self.means[self.best_rival]
        return 1 - self.means["slob"] / best if best > 0 else 0.0


def contests_of(rows: Iterable[Row], clairvoyant: frozenset[str]) -> list[Contest]:
    """Return each point of the claims' sweeps where slob meets others."""
    found = []
    for key, policies in samples_of(rows).items():
        means = {policy: mean_of(seeds, "mean_satisfaction") for policy, seeds in policies.items()}
        rivals = tuple(policy for policy in means if policy != "slob" and policy not in clairvoyant)
        if "slob" in means and rivals:
            found.append(Contest(key, means, rivals))
    return found


def policies_claims(rows: Sequence[Row], clairvoyant: frozenset[str] = frozenset()) -> tuple[Claim, ...]:
    """Return the claims in the order of the documentation.

    Parameters
    ----------
    rows
        Of the points.
    clairvoyant
        Policies that are shown, and that nobody has to beat.
    """
    contests = [contest for contest in contests_of(rows, clairvoyant) if contest.is_contested]
    gaps = [100 * contest.gap for contest in contests]
    share = 100 * sum(gap <= 100 * TIE for gap in gaps) / len(gaps) if gaps else None
    return (
        claim("policies.contested_points", len(contests), "points", ">=", LEAST_POINTS),
        claim("policies.best_or_tied_pct", share, "%", ">=", LEAST_BEST_PCT),
        claim("policies.worst_gap_pct", max(gaps, default=None), "%", "<=", MOST_GAP_PCT),
    )


def policies_figures(rows: Sequence[Row], clairvoyant: frozenset[str] = frozenset()) -> list[Row]:
    """Return what is reported without a target: standings of all policies, each point, and the ablations."""
    contests = contests_of(rows, clairvoyant)
    contested = [contest for contest in contests if contest.is_contested]
    samples = samples_of(rows)
    keys = {contest.point for contest in contested}
    figures = [figure("points", len(contests), "points", "in the study file, contested or not")]
    labels = dict.fromkeys(label for contest in contested for label in contest.means)
    for label in labels:
        note = "clairvoyant" if label in clairvoyant else ""
        for column in COLUMNS:
            values = [
                mean_of(policies[label], column)
                for key, policies in samples.items()
                if key in keys and label in policies
            ]
            unit = "s" if column.endswith("_s") else ""
            figures.append(figure(f"contested.{label}.{column}", float(np.mean(values)), unit, note))
    losses = [c for c in contested if c.gap > TIE]
    figures.append(
        figure("slob_loses", len(losses), "points", "; ".join(f"{c.point} to {c.best_rival}" for c in losses[:8]))
    )
    contest_rows: list[Row] = [
        {
            "kind": "contest",
            "cluster": contest.point.cluster,
            "preset": contest.point.preset,
            "engine": contest.point.engine,
            "load": contest.point.load,
            "is_contested": contest.is_contested,
            "best_rival": contest.best_rival,
            "best_rival_mean": contest.means[contest.best_rival],
            "slob_mean": contest.means["slob"],
            "slob_gap_pct": 100 * contest.gap,
        }
        for contest in contests
    ]
    return [*figures, *ablation_figures(rows), *contest_rows, *curve_rows(samples)]


def ablation_figures(rows: Sequence[Row]) -> list[Row]:
    """Return what each part of slob brings: mean over points and seeds of slob less slob without it, and its interval.

    Pairs are of one sample each, so that the interval is of the part's effect and not of the load.
    """
    samples = samples_of(rows, "ablation")
    figures = []
    labels = dict.fromkeys(label for policies in samples.values() for label in policies if label != "slob")
    for label in labels:
        pairs = [
            (mine, other)
            for policies in samples.values()
            if label in policies and "slob" in policies
            for mine, other in zip(policies["slob"], policies[label], strict=True)
        ]
        for column in COLUMNS:
            gains = [mine[column] - other[column] for mine, other in pairs]
            wide = half_width(gains)
            note = f"slob less {label} over {len(pairs)} runs" + ("" if wide is None else f", +- {wide:.3g}")
            unit = "s" if column.endswith("_s") else ""
            figures.append(figure(f"ablation.{label}.{column}", float(np.mean(gains)), unit, note))
    return figures
