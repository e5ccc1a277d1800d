"""Claims and figures of the paper study, from its rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from experiments.studies.claims import claim, figure
from experiments.studies.jobs import Row
from experiments.studies.serving_stats import (
    Ratio,
    Samples,
    capacities,
    curve_rows,
    is_stable,
    mean_of,
    ratios_of,
    samples_of,
)
from experiments.study_contract import Claim

PAPER_RTC, PAPER_ORCA = 29.4, 3.0
"""The paper's maxima against run-to-completion and Orca."""

DEFAULT_BETA = 0.25
"""Share of the oldest of slob where a study file doesn't say it."""

MOST_WORSE_PCT = 1.0
MOST_TTFT_PCT = 10.0


def paper_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    """Return the claims in the order of the documentation."""
    samples = samples_of(rows)
    claims = [
        claim(f"paper.max_ratio_{name}", _value(largest_ratio(ratios_of(samples, policy))), "x", ">=", least)
        for name, policy, least in (
            ("rtc", "rtc", PAPER_RTC), ("orca", "orca", PAPER_ORCA), ("orca_paged", "orca-paged", 1.0),
        )
    ]  # fmt: skip
    ratios = [value for _, value in capacity_ratios(samples)]
    claims.append(claim("paper.capacity_ratio_orca", min(ratios, default=None), "x", ">=", 1.0))
    losses = [100 * (1 - ratio.value) for ratio in ratios_of(samples, "orca") if math.isfinite(ratio.value)]
    claims.append(claim("paper.worst_vs_orca_pct", max(losses, default=None), "%", "<=", MOST_WORSE_PCT))
    return tuple(claims)


def _value(ratio: Ratio | None) -> float | None:
    return None if ratio is None else ratio.value


def largest_ratio(ratios: Sequence[Ratio]) -> Ratio | None:
    """Return the largest ratio of those that count; ``None`` when none does."""
    return max((ratio for ratio in ratios if ratio.counts), key=lambda ratio: ratio.value, default=None)


def capacity_ratios(samples: Samples) -> list[tuple[tuple[str, str, str], float]]:
    """Return slob's capacity over Orca's by cluster, preset and engine, where Orca has one; 0 where slob has none."""
    ours, theirs = capacities(samples, "slob"), capacities(samples, "orca")
    found = []
    for place, mine in ours.items():
        other = theirs.get(place)
        if other is not None:
            found.append((place, 0.0 if mine is None else mine / other))
    return found


def paper_figures(rows: Sequence[Row]) -> list[Row]:
    """Return what is reported without a target, and the rows of curves and ratios.

    Beside the maxima: where they occur, the same against every other policy, what paging alone and what slob on top of
    it brings at that place, capacities, and the first token's p99 against Orca's where Orca is stable.
    """
    samples = samples_of(rows)
    others = sorted({policy for policies in samples.values() for policy in policies if policy != "slob"})
    figures, ratio_rows = [], []
    for policy in others:
        ratios = ratios_of(samples, policy)
        ratio_rows += [ratio.as_row() for ratio in ratios]
        best = largest_ratio(ratios)
        note = "no point counts" if best is None else _place(best)
        if not policy.startswith("slob"):
            figures.append(figure(f"max_ratio.{policy}", _value(best), "x", note))
    figures += _shares(samples)
    figures += [
        figure(f"capacity_ratio_orca.{'.'.join(place)}", value, "x", "slob's largest good load over Orca's")
        for place, value in capacity_ratios(samples)
    ]
    for policy in ("slob", *others):
        figures += [
            figure(f"capacity.{policy}.{'.'.join(place)}", value, "requests in flight")
            for place, value in capacities(samples, policy).items()
        ]
    figures.append(_ttft(samples))
    return [*figures, *curve_rows(samples), *ratio_rows, *frontier_rows(rows)]


def frontier_rows(rows: Sequence[Row]) -> list[Row]:
    """Return rows of kind ``"frontier"``: mean satisfaction against p99 of the first token, over the oldest's share.

    ``beta`` is null for other policies than slob.
    """
    found = []
    for key, policies in samples_of(rows, "frontier").items():
        for policy, seeds in policies.items():
            beta = json.loads(seeds[0]["params"]).get("oldest_share", DEFAULT_BETA)
            found.append(
                {
                    "kind": "frontier",
                    "cluster": key.cluster,
                    "preset": key.preset,
                    "engine": key.engine,
                    "load": key.load,
                    "policy": policy,
                    "beta": beta if policy.startswith("slob") else None,
                    "num_seeds": len(seeds),
                    "mean_satisfaction": mean_of(seeds, "mean_satisfaction"),
                    "p10_satisfaction": mean_of(seeds, "p10_satisfaction"),
                    "ttft_p99_s": mean_of(seeds, "ttft_p99_s"),
                }
            )
    return found


def _place(ratio: Ratio) -> str:
    wide = "" if ratio.half_width is None else f" +- {ratio.half_width:.3g}"
    return (
        f"{ratio.point}: slob {ratio.slob_mean:.3f} (p10 {ratio.slob_p10:.3f}) against {ratio.other_mean:.3f},"
        f" ratio {ratio.value:.3g}{wide}"
    )


def _shares(samples: Samples) -> list[Row]:
    """What paging brings at the place of the largest gain over Orca, and what slob brings beyond it."""
    best = largest_ratio(ratios_of(samples, "orca"))
    if best is None or "orca-paged" not in samples[best.point]:
        return []
    paged = mean_of(samples[best.point]["orca-paged"], "mean_satisfaction")
    return [
        figure("gain.paging", paged / best.other_mean, "x", f"orca-paged over orca at {best.point}"),
        figure("gain.slob_beyond_paging", best.slob_mean / paged, "x", f"slob over orca-paged at {best.point}"),
    ]


def _ttft(samples: Samples) -> Row:
    """By how much slob's p99 of the first token exceeds Orca's, at most, where Orca is stable."""
    worst, place, count = None, "", 0
    for key, policies in samples.items():
        if "slob" not in policies or "orca" not in policies or not is_stable(policies["orca"]):
            continue
        count += 1
        theirs = mean_of(policies["orca"], "ttft_p99_s")
        excess = 100 * (mean_of(policies["slob"], "ttft_p99_s") / theirs - 1)
        if worst is None or excess > worst:
            worst, place = excess, str(key)
    note = f"over {count} points where Orca is stable; target at most {MOST_TTFT_PCT:g}; worst at {place}"
    return figure("ttft_p99_vs_orca_pct", worst, "%", note)
