"""Jobs: order, resuming, torn files, broken jobs, several processes."""

from __future__ import annotations

import json
import pickle
from functools import partial
from pathlib import Path

import pytest

from experiments.instances import scale_problem
from experiments.studies.jobs import FINISHED_FILE, Job, Row, key_of, read_finished, run_jobs, source_digest
from experiments.studies.scale import case_job
from experiments.studies.scale_cases import ScaleCase
from slob_opt.planning.result import SolveLimits


def numbered(number: int, log: str | None = None) -> list[Row]:
    if log is not None:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{number}\n")
    return [{"kind": "result", "number": number}]


def broken() -> list[Row]:
    raise ArithmeticError("no luck")


def jobs_of(numbers: range, log: Path | None = None) -> list[Job]:
    return [Job(key_of(n), f"job-{n}", 1.0, partial(numbered, n, None if log is None else str(log))) for n in numbers]


def test_rows_come_in_the_order_of_the_jobs_from_two_processes(tmp_path: Path) -> None:
    """Real cases: they and their rows have to survive the way to another process and back."""
    told: list[str] = []
    jobs = [case_job(ScaleCase("slob", scale_problem(size), (), SolveLimits(), 1.0), "sources") for size in (16, 8, 24)]
    rows, resumed = run_jobs(jobs, tmp_path, workers=2, progress=told.append)
    results = [row for row in rows if row["kind"] == "result"]
    assert [row["num_devices"] for row in results] == [16, 8, 24]
    assert all(row["certificate_valid"] and row["value"] > 0 for row in results)
    assert resumed == 0
    assert told[-1].startswith("3 of 3 instances, about 0.0 min left")


def test_finished_jobs_are_not_run_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first, _ = run_jobs(jobs_of(range(3), log), tmp_path, workers=1, progress=lambda _: None)
    again, resumed = run_jobs(jobs_of(range(4), log), tmp_path, workers=1, progress=lambda _: None)
    assert resumed == 3
    assert again[:3] == first
    assert log.read_text(encoding="utf-8").split() == ["0", "1", "2", "3"]


def test_a_torn_last_line_is_run_again(tmp_path: Path) -> None:
    """An interrupted write leaves half a line; the next call cuts it off and writes the job whole."""
    run_jobs(jobs_of(range(2)), tmp_path, workers=1, progress=lambda _: None)
    path = tmp_path / FINISHED_FILE
    text = path.read_text(encoding="utf-8")
    path.write_text(text[:-10], encoding="utf-8")
    _, resumed = run_jobs(jobs_of(range(2)), tmp_path, workers=1, progress=lambda _: None)
    assert resumed == 1
    assert path.read_text(encoding="utf-8") == text


def test_lines_of_another_schema_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / FINISHED_FILE
    path.write_text(json.dumps({"schema_version": 99, "key": "a", "rows": []}) + "\n", encoding="utf-8")
    assert read_finished(path) == {}
    assert read_finished(tmp_path / "absent") == {}


def test_a_broken_job_is_told_in_a_row_and_tried_again(tmp_path: Path) -> None:
    jobs = [Job("a", "bad", 1.0, broken), *jobs_of(range(1))]
    rows, _ = run_jobs(jobs, tmp_path, workers=1, progress=lambda _: None)
    assert rows[0]["kind"] == "failure"
    assert rows[0]["message"] == "ArithmeticError: no luck"
    assert "broken" in rows[0]["trace"]
    assert rows[1]["number"] == 0
    _, resumed = run_jobs(jobs, tmp_path, workers=1, progress=lambda _: None)
    assert resumed == 1


def test_a_job_with_a_broken_method_is_tried_again(tmp_path: Path) -> None:
    jobs = [Job("a", "half", 1.0, lambda: [{"kind": "result", "broke": True}])]
    for _ in range(2):
        _, resumed = run_jobs(jobs, tmp_path, workers=1, progress=lambda _: None)
        assert resumed == 0


def test_what_cannot_reach_another_process_is_told_at_once(tmp_path: Path) -> None:
    jobs = [Job(name, name, 1.0, lambda: []) for name in ("a", "b")]
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        run_jobs(jobs, tmp_path, workers=2, progress=lambda _: None)


def test_the_digest_covers_the_sources() -> None:
    assert source_digest("slob_opt") == source_digest("slob_opt")
    assert source_digest("slob_opt") != source_digest("solvers")
