"""Claims and figures of the scale study, from its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from experiments.studies.claims import claim, figure, largest, median
from experiments.studies.gap_claims import NO_PLAN_PCT
from experiments.studies.jobs import Row
from experiments.studies.scale_cases import BOUNDED_SIZES
from experiments.study_contract import Claim

MAX_SLOB_S = {256: 1.0, 1024: 10.0}
"""Targets of `slob`'s time, seconds, by number of devices."""


def scale_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    """Return the claims in the order of the documentation."""
    found = [_single24(rows), *_hetero42(rows)]
    gaps = medium_gaps(rows)
    found += [
        claim("scale.medium.median_gap_pct", median(gaps), "%", "<=", 0),
        claim("scale.medium.max_gap_pct", largest(gaps), "%", "<=", 5),
    ]
    for size in BOUNDED_SIZES:
        slob = _slob(rows, size)
        wall_s = slob["wall_s"] if slob is not None and slob["value"] is not None else None
        gap = slob["optimum_gap_pct"] if slob is not None else None
        found += [
            claim(f"scale.slob{size}.wall_s", wall_s, "s", "<=", MAX_SLOB_S[size]),
            claim(f"scale.slob{size}.gap_pct", gap, "%", "<=", 5),
        ]
    return tuple(found)


def scale_figures(rows: Sequence[Row]) -> list[Row]:
    """Return the figures that are reported without a target."""
    results = [r for r in rows if r["kind"] == "result"]
    judged = [r for r in rows if r["kind"] == "judgement"]
    figures = [
        figure("disagreements", sum(r["num_disagreements"] for r in judged), ""),
        figure("certificate_violations", sum(r["num_violations"] for r in judged), ""),
        figure("medium.instances", len(medium_gaps(rows)), "instances"),
        figure("medium.proven", sum(r["is_proven"] for r in judged if r["group"] == "medium"), "instances"),
        figure("slob.growth_exponent", growth_exponent(rows), "", "slope of log time over log devices, all sizes"),
        figure("failures", sum(r["kind"] == "failure" for r in rows), "instances"),
    ]
    for row in results:
        if row["group"] in ("single24", "hetero42") and row["method"] != "slob":
            note = f"{row['certified_status']}, bound {row['bound_status']}; {row['message']}".strip("; ")
            figures.append(figure(f"{row['group']}.{row['method']}.wall", row["wall_s"], "s", note))
        if row["group"] == "slob" and row["method"] == "slob":
            figures.append(figure(f"slob.{row['num_devices']}.wall", row["wall_s"], "s"))
        elif row["group"] == "slob":
            note = f"{row['status']}, bound {row['bound_status']}"
            figures.append(figure(f"{row['method']}.{row['num_devices']}.bound_wall", row["wall_s"], "s", note))
    return figures


def medium_gaps(rows: Sequence[Row]) -> list[float]:
    """Return the gaps of `slob` on medium problems to optimum or best verified bound, per cent."""
    has_bound = {r["fingerprint"] for r in rows if r["kind"] == "judgement" and r["has_bound"]}
    return [
        NO_PLAN_PCT if r["optimum_gap_pct"] is None else r["optimum_gap_pct"]
        for r in rows
        if r["kind"] == "result" and r["group"] == "medium" and r["method"] == "slob" and r["fingerprint"] in has_bound
    ]


def growth_exponent(rows: Sequence[Row]) -> float | None:
    """Return the slope of log time over log devices of `slob`; ``None`` with fewer than two sizes."""
    points = [
        (math.log(r["num_devices"]), math.log(r["wall_s"]))
        for r in rows
        if r["kind"] == "result" and r["group"] == "slob" and r["method"] == "slob"
    ]
    if len({x for x, _ in points}) < 2:
        return None
    return float(np.polyfit([x for x, _ in points], [y for _, y in points], 1)[0])


def _single24(rows: Sequence[Row]) -> Claim:
    """Time of `parametric`; without a certified proof the claim fails whatever the time."""
    row = next((r for r in _group(rows, "single24") if r["method"] == "parametric"), None)
    found = claim("scale.single24.proof_s", None if row is None else row["wall_s"], "s", "<=", 5)
    return found if row is None or row["certified_status"] == "OPTIMAL" else replace(found, holds=False)


def _hetero42(rows: Sequence[Row]) -> tuple[Claim, Claim]:
    """Gap and time of the method that closes most, the quicker one of equals; its time includes `slob`'s."""
    group = _group(rows, "hetero42")
    start_s = sum(r["wall_s"] for r in group if r["method"] == "slob")
    proofs = [
        (r["gap_pct"], start_s + r["wall_s"])
        for r in group
        if r["method"] != "slob" and r["gap_pct"] is not None and r["bound_status"] == "verified"
    ]
    gap, wall_s = min(proofs) if proofs else (None, None)
    return (
        claim("scale.hetero42.gap_pct", gap, "%", "<=", 1),
        claim("scale.hetero42.wall_s", wall_s, "s", "<=", 120),
    )


def _group(rows: Sequence[Row], group: str) -> list[Row]:
    return [r for r in rows if r["kind"] == "result" and r["group"] == group]


def _slob(rows: Sequence[Row], size: int) -> Row | None:
    found = (r for r in _group(rows, "slob") if r["method"] == "slob" and r["num_devices"] == size)
    return next(found, None)
