"""`slob compare`: figures, files, runs; and what happens when tracking or a method fails."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments import registry
from experiments.cli import compare as command
from experiments.compare_output import folder_name, write_json
from experiments.demo_suite import SUITES, suite
from experiments.problem_setup import ProblemOptions, set_up
from experiments.tracking import TrackingStore
from slob_opt.errors import InputError, TrackingError

Slob = Callable[..., Any]


def test_compare_saves_plans_plots_report_and_runs(slob: Slob, tiny: tuple[str, ...], tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    out = tmp_path / "out"
    argv = (*tiny, "--methods", "even,petals-greedy,parametric", "--out", out, "--experiment", "mine", "--seed", "3")
    answer = slob("compare", *argv)
    assert answer.code == 0, answer.err
    text = " ".join(answer.out.split())
    assert "best bound" in text
    assert answer.out.rstrip().splitlines()[-2:] == [f"report: {out}/report.json", f"store: sqlite:///{out}/mlflow.db"]
    place = out / "tiny_small_throughput"
    names = {path.name for path in place.iterdir()}
    plots = {f"{name}.{kind}" for name in ("layer-map", "gap-over-time") for kind in ("png", "svg")}
    assert names == {"plan-even.json", "plan-petals-greedy.json", "plan-parametric.json"} | plots
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["config"]["limits"]["seed"] == 3
    assert [m["method"] for m in report["instances"][0]["methods"]] == ["even", "petals-greedy", "parametric"]
    assert report["files"][0]["plans"]["even"] == "tiny_small_throughput/plan-even.json"
    assert slob("validate", place / "plan-parametric.json").code == 0

    client = mlflow.tracking.MlflowClient(f"sqlite:///{out}/mlflow.db")
    experiment = client.get_experiment_by_name("mine")
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = {run.data.tags["method"]: run for run in runs if "mlflow.parentRunId" in run.data.tags}
    assert len(parents) == 1
    assert set(children) == {"even", "petals-greedy", "parametric"}
    (parent,) = parents
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {parent.info.run_id}
    assert {"commit", "machine", "version.numpy", "version.python", "reproducible"} <= set(parent.data.tags)
    assert parent.data.metrics["num_methods"] == 3
    best = children["parametric"]
    assert best.data.params["seed"] == "3"
    assert best.data.metrics["gap_pct"] <= 1e-4
    assert best.data.metrics["bound_verified"] == 1
    assert best.data.tags["status"] == "OPTIMAL"
    assert {a.path for a in client.list_artifacts(best.info.run_id)} >= {"plan-parametric.json", "stages.csv"}
    assert {a.path for a in client.list_artifacts(parent.info.run_id)} >= {"report.json", "plots"}
    assert all(run.info.status == "FINISHED" for run in runs)


def test_a_plan_that_another_methods_bound_proves_carries_that_proof(
    slob: Slob, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    """slob has no bound of its own; where its plan meets the exact search's bound, its file verifies alone."""
    pytest.importorskip("slob_opt.slob.placement")
    argv = (*tiny, "--objective", "latency", "--methods", "slob,parametric", "--out", tmp_path, "--no-track")
    data = json.loads(slob("compare", *argv, "--format", "json").out)
    first, second = data["instances"][0]["methods"]
    assert (first["status"], first["bound_status"]) == ("OPTIMAL", "verified")
    assert first["bound"] == second["bound"]
    answer = slob("validate", tmp_path / "tiny_small_interval-k1" / "plan-slob.json", "--format", "json")
    assert answer.code == 0
    assert json.loads(answer.out)["plan"]["bound_status"] == "verified"


def test_json_is_the_report(slob: Slob, tiny: tuple[str, ...], tmp_path: Path) -> None:
    answer = slob("compare", *tiny, "--methods", "even", "--out", tmp_path / "o", "--no-track", "--format", "json")
    assert answer.code == 0
    data = json.loads(answer.out)
    assert data["command"] == "compare"
    assert not (tmp_path / "o" / "mlflow.db").exists()


def test_two_instances_share_one_model(slob: Slob, tiny: tuple[str, ...], tmp_path: Path) -> None:
    argv = (*tiny, "--cluster", "lab-3", "--methods", "even", "--out", tmp_path / "o", "--no-track", "--format", "json")
    data = json.loads(slob("compare", *argv).out)
    assert [item["instance"] for item in data["instances"]] == ["tiny/small/throughput", "lab-3/small/throughput"]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ((), "give --cluster and --model, or --suite"),
        (("--suite", "demos"), "did you mean 'demo'?"),
        (("--suite", "demo", "--cluster", "lab-3"), "--suite brings its own"),
        (("-c", "lab-3", "-c", "lab-3", "-c", "lab-3", "-m", "gpt2", "-m", "gpt2"), "3 clusters and 2 models"),
    ],
)
def test_wrong_instances_are_told(argv: tuple[str, ...], sentence: str, slob: Slob) -> None:
    answer = slob("compare", *argv)
    assert answer.code == 2
    assert sentence in answer.err


class Broken:
    """A method with a bug."""

    name = "even"

    def solve(self, instance: object, **options: object) -> None:
        raise ZeroDivisionError("division by zero")


def test_one_broken_method_does_not_cost_the_others(
    slob: Slob, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = registry.PlannerEntry("even", f"{__name__}:Broken", "baseline", "a bug")
    monkeypatch.setitem(registry.PLANNERS, "even", entry)
    real = registry.load_target
    monkeypatch.setattr(registry, "load_target", lambda target: Broken if target == entry.target else real(target))
    argv = (*tiny, "--methods", "even,speed-proportional", "--out", tmp_path / "o", "--no-track", "--format", "json")
    data = json.loads(slob("compare", *argv).out)
    broken, fine = data["instances"][0]["methods"]
    assert broken["status"] == "UNKNOWN"
    assert broken["message"] == "broke: ZeroDivisionError: division by zero"
    assert fine["status"] == "FEASIBLE"


def test_a_store_that_is_locked_from_the_start_costs_no_time(
    slob: Slob, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    out = tmp_path / "o"
    out.mkdir()
    connection = sqlite3.connect(out / "mlflow.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(command, "BUSY_WAIT_S", 0.0)
    answer = slob("compare", *tiny, "--methods", "even", "--out", out)
    connection.close()
    assert answer.code == 2
    assert "is locked by another process" in answer.err
    assert len(answer.err.strip().splitlines()) == 1
    assert not (out / "report.json").exists()


@pytest.mark.parametrize("method", ["pattern-ilp", "ilp"])
def test_a_memory_limit_that_stops_a_method_is_told_in_table_and_report(
    method: str, slob: Slob, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    """pattern-ilp can't start its solver in so little, ilp does not try to."""
    pytest.importorskip("highspy", reason="highspy is not installed: pip install 'slob[exact]'")
    argv = ("compare", *tiny, "--methods", method, "--memory-limit", "1MiB", "--out", tmp_path / "o", "--no-track")
    answer = slob(*argv)
    assert answer.code == 1, "there is no plan"
    row = next(line for line in answer.out.splitlines() if line.startswith(f"{method}  "))
    assert row.rstrip().endswith("UNKNOWN (memory limit)")
    report = json.loads((tmp_path / "o" / "report.json").read_text(encoding="utf-8"))
    (told,) = report["instances"][0]["methods"]
    assert told["met_memory_limit"] is True
    assert "limit of 1" in told["message"]
    assert f"{method}: {told['message']}" in " ".join(answer.out.split())


class LockedStore:
    """A store that gets locked while methods run."""

    location = None

    def start(self, *args: object, **options: object) -> str:
        raise TrackingError("the tracking store x is locked by another process")


def test_a_store_that_fails_later_costs_no_plan(
    slob: Slob, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrackingStore, "open", lambda *args, **options: LockedStore())
    answer = slob("compare", *tiny, "--methods", "even", "--out", tmp_path / "o")
    assert answer.code == 2
    assert "is locked by another process; plans and report are saved in" in answer.err
    assert (tmp_path / "o" / "report.json").is_file()
    assert (tmp_path / "o" / "tiny_small_throughput" / "plan-even.json").is_file()


def test_a_file_store_in_the_environment_is_refused(
    slob: Slob, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "tracking_uri", lambda: "file:./mlruns")
    answer = slob("compare", *tiny, "--methods", "even", "--out", tmp_path / "o")
    assert answer.code == 2
    assert "mlflow migrate-filestore" in answer.err


@pytest.mark.parametrize("pair", suite("demo"))
def test_the_demo_suite_is_bundled(pair: tuple[str, str]) -> None:
    setup = set_up(ProblemOptions(*pair))
    assert setup.table.num_layers == setup.model.num_layers
    assert len(setup.cluster.nodes) > 1


def test_the_demo_suite_has_all_kinds_of_instances() -> None:
    tables = [set_up(ProblemOptions(*pair)).table for pair in suite("demo")]
    assert [table.has_uniform_links for table in tables] == [True, True, False]
    assert len(SUITES["demo"]) == 3
    with pytest.raises(InputError, match="did you mean 'demo'"):
        suite("demmo")


def test_files_are_whole_or_absent(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    write_json(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write_json(target, "new \ud800")
    assert target.read_text(encoding="utf-8") == '"old"\n'
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_folder_names_hold_no_separators() -> None:
    assert folder_name("../a b/c:d/interval-k4") == ".._a-b_c-d_interval-k4"
