"""The scale study on small clusters, and its claims from rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.instances import scale_problem, single24
from experiments.run_record import CLAIM_METRICS
from experiments.studies.scale import study_of
from experiments.studies.scale_cases import ScaleCase, scale_cases
from experiments.studies.scale_claims import growth_exponent, scale_claims
from experiments.study_contract import StudyOptions
from slob_opt.planning.result import SolveLimits

LIMITS = SolveLimits(30.0)


def test_fixed_and_small_problems_give_claims_that_hold(tmp_path: Path) -> None:
    cases = [
        ScaleCase("single24", single24(), ("parametric",), LIMITS, 1.0),
        ScaleCase("slob", scale_problem(8), (), LIMITS, 1.0),
        ScaleCase("slob", scale_problem(16), (), LIMITS, 1.0),
    ]
    summary = study_of(cases, StudyOptions(tmp_path, True, 0, 1, lambda _: None))
    json.dumps(summary.as_json(), allow_nan=False)
    assert {c.id for c in summary.claims} == {name for name in CLAIM_METRICS if name.startswith("scale.")}
    proof = next(r for r in summary.rows if r["kind"] == "result" and r["method"] == "parametric")
    assert proof["certified_status"] == "OPTIMAL"
    assert proof["gap_pct"] < 1e-4
    figures = {r["name"]: r["value"] for r in summary.rows if r["kind"] == "figure"}
    assert figures["disagreements"] == figures["certificate_violations"] == figures["failures"] == 0
    assert {"slob.8.wall", "slob.16.wall", "single24.parametric.wall"} <= set(figures)
    assert len(summary.records) == 4


def test_the_full_study_is_as_the_documentation_says() -> None:
    cases = scale_cases(0, is_quick=False)
    assert sum(c.group == "medium" for c in cases) >= 50
    assert sorted(len(c.problem.cluster.nodes) for c in cases if c.group == "slob" and c.bound_methods) == [256, 1024]
    assert {c.limits.time_s for c in cases if c.group in ("hetero42", "slob")} == {120.0}


def row(group: str, method: str, wall_s: float, **more: object) -> dict:
    return {
        "kind": "result", "group": group, "method": method, "wall_s": wall_s, "fingerprint": group, "value": 1.0,
        "gap_pct": None, "optimum_gap_pct": 0.0, "bound_status": "verified", "certified_status": "OPTIMAL",
        "num_devices": 24, **more,
    }  # fmt: skip


def test_a_proof_that_is_not_certified_fails_whatever_its_time() -> None:
    claims = {c.id: c for c in scale_claims([row("single24", "parametric", 1.0)])}
    assert claims["scale.single24.proof_s"].holds is True
    claims = {c.id: c for c in scale_claims([row("single24", "parametric", 1.0, certified_status="FEASIBLE")])}
    assert claims["scale.single24.proof_s"].holds is False


def test_hetero42_counts_verified_bounds_and_the_time_of_both_methods() -> None:
    rows = [
        row("hetero42", "slob", 0.5),
        row("hetero42", "parametric", 90.0, gap_pct=0.2),
        row("hetero42", "pattern-ilp", 20.0, gap_pct=0.0, bound_status="claimed"),
    ]
    claims = {c.id: c for c in scale_claims(rows)}
    assert claims["scale.hetero42.gap_pct"].value == 0.2
    assert claims["scale.hetero42.wall_s"].value == 90.5
    assert claims["scale.slob256.gap_pct"].holds is None


def test_growth_is_the_slope_of_log_time() -> None:
    """Four times the devices, sixteen times the time: exponent 2."""
    rows = [row("slob", "slob", 0.1, num_devices=64), row("slob", "slob", 1.6, num_devices=256)]
    assert growth_exponent(rows) == pytest.approx(2.0)
    assert growth_exponent(rows[:1]) is None
