"""`slob study` with study files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from study_files import write_study

Slob = Callable[..., Any]


def test_a_study_file_of_ones_own_runs_and_leaves_an_example(slob: Slob, tmp_path: Path) -> None:
    file = write_study(tmp_path, ("duration: 1min", "duration: 4min"))
    out = tmp_path / "out"
    answer = slob("study", "paper", "--quick", "--file", file, "--out", out, "--no-track", "--format", "json")
    data = json.loads(answer.out)
    assert {claim["id"] for claim in data["claims"]} >= {"paper.max_ratio_rtc", "paper.worst_vs_orca_pct"}
    assert data["config"]["file"] == str(file)
    assert not any(row["kind"] == "failure" for row in data["rows"])
    lines = (out / "example.trace.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0])["policy"] == "slob"
    report = slob("report", out)
    assert report.code == 0, report.err


def test_a_typo_in_a_study_file_is_one_sentence(slob: Slob, tmp_path: Path) -> None:
    file = write_study(tmp_path, ("policy: orca-paged", "policy: orca-pagd"))
    answer = slob("study", "paper", "--file", file, "--out", tmp_path / "out", "--no-track")
    assert answer.code == 2
    assert "study.yaml: policies[2]: no policy 'orca-pagd'; did you mean 'orca-paged'?" in answer.err
    assert answer.err.count("\n") == 1


def test_studies_without_a_file_refuse_one(slob: Slob, tmp_path: Path) -> None:
    answer = slob("study", "gap", "--file", tmp_path / "x.yaml", "--no-track")
    assert answer.code == 2
    assert "study gap takes no --file; paper, policies" in answer.err
    answer = slob("study", "paper", "--file", tmp_path / "x.yaml", "--no-track")
    assert answer.code == 2
    assert "x.yaml: no such file" in answer.err
