"""Claims and figures of the gap study, from its rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from experiments.registry import PLANNERS
from experiments.studies.claims import claim, figure, largest, median, quantile
from experiments.studies.gap_cases import SPEEDUP_DEVICES
from experiments.studies.jobs import Row
from experiments.study_contract import Claim

INDEXED = ("ilp", "cpsat")
NO_PLAN_PCT = 100.0
"""Gap of `slob` where a plan exists and it found none."""


def gap_claims(rows: Sequence[Row], num_planned: int) -> tuple[Claim, ...]:
    """Return the claims in the order of the documentation.

    Parameters
    ----------
    rows
        All rows of the study.
    num_planned
        Instances that the study set out to run; the target of ``gap.instances``.
    """
    judged = [r for r in rows if r["kind"] == "judgement"]
    originals = [r for r in judged if r["is_original"]]
    required = [r for r in rows if r["kind"] == "property" and r["is_required"]]
    gaps = slob_gaps(rows)
    drops = [r["worse_pct"] for r in _scratch_drops(rows, "slob")]
    has_run = bool(originals)
    found = [
        claim("gap.instances", sum(r["is_complete"] for r in originals), "", ">=", num_planned),
        claim("gap.exact_disagreements", sum(r["num_disagreements"] for r in judged) if has_run else None, "", "==", 0),
        claim("gap.certificate_violations", sum(r["num_violations"] for r in judged) if has_run else None, "", "==", 0),
        claim("gap.property_violations", sum(not r["holds"] for r in required) if required else None, "", "==", 0),
    ]
    for goal in ("interval", "throughput"):
        values = gaps[goal]
        found += [
            claim(f"gap.slob.{goal}.median_pct", median(values), "%", "<=", 0),
            claim(f"gap.slob.{goal}.p95_pct", quantile(values, 0.95), "%", "<=", 1),
            claim(f"gap.slob.{goal}.max_pct", largest(values), "%", "<=", 5),
        ]
    return (
        *found,
        claim("gap.slob.speedup_median", median(speedups(rows, "wall_s")), "x", ">=", 50),
        claim("gap.slob.monotonicity_worst_pct", largest(drops), "%", "<=", 1),
    )


def gap_figures(rows: Sequence[Row]) -> list[Row]:
    """Return the figures that are reported without a target."""
    results = [r for r in rows if r["kind"] == "result"]
    originals = [r for r in rows if r["kind"] == "judgement" and r["is_original"]]
    slob_ms = [r["wall_s"] * 1e3 for r in results if r["method"] == "slob"]
    indexed = [r for r in results if r["method"] in INDEXED and r["objective"] == "throughput"]
    figures = [
        figure("slob.wall_median", median(slob_ms), "ms", "median of three calls on each instance"),
        figure("slob.wall_p95", quantile(slob_ms, 0.95), "ms", "to be held against 20 ms"),
        figure("slob.wall_max", largest(slob_ms), "ms"),
        figure("slob.over_20ms", sum(ms > 20 for ms in slob_ms), "instances"),
        figure("slob.without_plan", len(_missed(rows)), "instances", "where an exact method has a plan"),
        figure(
            "slob.speedup_solve_only_median",
            median(speedups(rows, "solve_s")),
            "x",
            "against building and solving without the start of the solver's process",
        ),
        figure("slob.speedup_parametric_median", median(_ratios(rows, "parametric")), "x"),
        figure("slob.monotonicity_drops", len(_worse(_scratch_drops(rows, "slob"))), "variants", "from scratch"),
        figure("indexed.throughput_instances", len({r["fingerprint"] for r in indexed}), "instances"),
        figure("infeasible", sum(r["is_infeasible"] for r in originals), "instances", "proven"),
        figure("without_proof", sum(r["optimum"] is None and not r["is_infeasible"] for r in originals), "instances"),
        figure("failures", sum(r["kind"] == "failure" for r in rows), "instances"),
    ]
    for method in INDEXED:
        open_ = [r for r in indexed if r["method"] == method and r["status"] not in ("OPTIMAL", "INFEASIBLE")]
        figures.append(figure(f"{method}.throughput_unclosed", len(open_), "instances", "within the time limit"))
    for entry in PLANNERS.values():
        if entry.kind == "baseline":
            drops = _scratch_drops(rows, entry.name)
            worst = largest([r["worse_pct"] for r in drops])
            figures.append(
                figure(f"{entry.name}.monotonicity_drops", len(_worse(drops)), "variants", f"of {len(drops)}")
            )
            figures.append(figure(f"{entry.name}.monotonicity_worst", worst, "%"))
    absent = Counter(r["method"] for r in results if not r["available"])
    figures += [figure(f"{method}.unavailable", count, "instances") for method, count in sorted(absent.items())]
    return figures


def slob_gaps(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return the gaps of `slob` to the proven optimum, per cent, by objective."""
    gaps: dict[str, list[float]] = defaultdict(list)
    optima = {
        r["fingerprint"] for r in rows if r["kind"] == "judgement" and r["is_original"] and r["optimum"] is not None
    }
    for row in rows:
        if row["kind"] == "result" and row["method"] == "slob" and row["fingerprint"] in optima:
            gap = row["optimum_gap_pct"]
            gaps[row["objective"]].append(NO_PLAN_PCT if gap is None else gap)
    return gaps


def speedups(rows: Sequence[Row], column: str) -> list[float]:
    """Return how many times longer the faster device-indexed method took, for interval instances of ten devices and up.

    A method that its limit stopped counts with the time it took.

    Parameters
    ----------
    column
        ``"wall_s"`` for the whole call, ``"solve_s"`` without the start of the solver's process.
    """
    by_instance = _by_instance(rows, "interval")
    found = []
    for methods in by_instance.values():
        times = [methods[m][column] for m in INDEXED if m in methods and methods[m][column] is not None]
        if times and "slob" in methods and methods["slob"]["num_devices"] >= SPEEDUP_DEVICES:
            found.append(min(times) / methods["slob"]["wall_s"])
    return found


def _ratios(rows: Sequence[Row], method: str) -> list[float]:
    found = {**_by_instance(rows, "interval"), **_by_instance(rows, "throughput")}
    return [m[method]["wall_s"] / m["slob"]["wall_s"] for m in found.values() if method in m and "slob" in m]


def _by_instance(rows: Sequence[Row], objective: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in rows:
        if row["kind"] == "result" and row["objective"] == objective and row["available"]:
            found[row["fingerprint"]][row["method"]] = row
    return found


def _missed(rows: Sequence[Row]) -> list[Row]:
    optima = {r["fingerprint"] for r in rows if r["kind"] == "judgement" and r["optimum"] is not None}
    return [
        r
        for r in rows
        if r["kind"] == "result" and r["method"] == "slob" and r["value"] is None and r["fingerprint"] in optima
    ]


def _scratch_drops(rows: Sequence[Row], method: str) -> list[Row]:
    return [
        r
        for r in rows
        if r["kind"] == "property"
        and r["property"] == "monotonicity"
        and r["method"] == method
        and r["start"] == "scratch"
        and r["worse_pct"] is not None
    ]


def _worse(rows: Sequence[Row]) -> list[Row]:
    return [r for r in rows if not r["holds"]]
