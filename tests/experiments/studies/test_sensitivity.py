"""Rankings of policies under other measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from study_files import write_study
from study_rows import row

from experiments.studies.sensitivity import ranking_rows, sensitivity_claims, sensitivity_figures, study_of
from experiments.studies.serving_file import StudyFile
from experiments.study_contract import StudyOptions

FAMILY = "\nfamily:\n- {name: short, metric: {scale: 1s}}\n- {name: flat, metric: {first_weight: 1.0}}"


def family(spec: str, policy: str, mean: float) -> dict:
    return row(policy, 1, mean) | {"kind": "family", "spec": spec}


def test_a_swap_of_neighbours_and_a_reversal() -> None:
    """Three policies: one swap has Spearman 0.5, a reversal -1."""
    rows = [row(name, 1, mean) for name, mean in (("a", 0.9), ("b", 0.5), ("c", 0.1))]
    rows += [family("swap", name, mean) for name, mean in (("a", 0.9), ("b", 0.1), ("c", 0.2))]
    rows += [family("turned", name, mean) for name, mean in (("a", 0.1), ("b", 0.5), ("c", 0.9))]
    rankings = {r["spec"]: r for r in ranking_rows(rows)}
    assert rankings["default"]["ranking"] == ["a", "b", "c"]
    assert rankings["swap"]["spearman"] == pytest.approx(0.5)
    assert rankings["swap"]["is_first_kept"] is True
    assert rankings["turned"]["spearman"] == pytest.approx(-1.0)
    [claim] = sensitivity_claims(list(rankings.values()))
    assert claim.value == pytest.approx(-1.0)
    assert claim.holds is False
    figures = {f["name"]: f for f in sensitivity_figures(list(rankings.values()))}
    assert figures["first_lost"]["note"] == "turned"
    assert figures["least_point_spearman"]["value"] == pytest.approx(-1.0)


def test_without_a_family_nothing_is_claimed() -> None:
    [claim] = sensitivity_claims(ranking_rows([row("a", 1, 0.9), row("b", 1, 0.5)]))
    assert claim.holds is None


def test_a_small_study_measures_each_run_under_all_specifications(tmp_path: Path) -> None:
    changes = (("grace: 2min", f"grace: 2min{FAMILY}"), ("duration: 1min", "duration: 4min"))
    path = write_study(tmp_path, *changes, study="sensitivity")
    file = StudyFile(path, "sensitivity")
    summary = study_of(file, StudyOptions(tmp_path / "out", True, 0, 1, lambda _: None))
    json.dumps(summary.as_json(), allow_nan=False)
    assert sum(r["kind"] == "family" for r in summary.rows) == 2 * sum(r["kind"] == "point" for r in summary.rows)
    assert {r["spec"] for r in summary.rows if r["kind"] == "ranking"} == {"default", "short", "flat"}
