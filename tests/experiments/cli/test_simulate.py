"""`slob simulate` as a user calls it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Slob = Callable[..., Any]

SYSTEM = ("--cluster", "lab-3", "--model", "qwen2.5-7b")
QUICK = ("--duration", "2min", "--no-track")


@pytest.fixture
def folder(tmp_path: Path) -> tuple[str, str]:
    return ("--out", str(tmp_path / "out"))


def test_several_policies_meet_the_same_requests(slob: Slob, folder: tuple[str, str]) -> None:
    answer = slob(
        "simulate", *SYSTEM, *QUICK, *folder, "-w", "office_chat", "--load", 3, "-p", "orca,chunked,slob",
        "--param", "chunked.chunk_tokens=256", "--format", "json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    data = json.loads(answer.out)
    assert [item["label"] for item in data["policies"]] == ["orca", "chunked", "slob"]
    assert len({item["summary"]["num_requests"] for item in data["policies"]}) == 1
    assert data["policies"][1]["params"] == {"chunk_tokens": "256"}
    assert data == json.loads((Path(folder[1]) / "summary.json").read_text(encoding="utf-8"))
    rows = list(csv.DictReader((Path(folder[1]) / "requests.csv").open(encoding="utf-8")))
    assert len(rows) == 3 * data["policies"][0]["summary"]["num_requests"]


def test_a_plan_file_is_enough(slob: Slob, folder: tuple[str, str], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert slob("plan", *SYSTEM, "--methods", "slob", "--out", plan).code == 0
    answer = slob("simulate", "--plan", plan, *QUICK, *folder, "-w", "shop_floor_qa", "--rate", 0.5)
    assert answer.code == 0, answer.err
    assert "lab-3/qwen2.5-7b serves shop_floor_qa" in answer.out
    other = slob("simulate", "--plan", plan, "-c", "mixed-box-1", "-m", "qwen2.5-7b", "-w", "office_chat", "--no-track")
    assert other.code == 2
    assert "the plan was made for another cluster" in other.err
    other = slob("simulate", "--plan", plan, "-c", "lab-3", "-m", "llama-3.1-8b", "-w", "office_chat", "--no-track")
    assert other.code == 2
    assert "the plan was made for another model" in other.err


def test_a_trace_is_thinned_and_long_rows_are_counted(slob: Slob, folder: tuple[str, str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = ["2023-11-16 18:15:46.68,374,44", "2023-11-16 18:15:50.95,9000,109", "2023-11-16 18:15:59.48,879,55"]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n", encoding="utf-8")
    answer = slob(
        "simulate", "-c", "lab-3", "-m", "llama-2-7b", "--no-track", *folder, "-w", trace, "-p", "orca",
        "--engine", "padded",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert "skipped 1 too-long" in answer.out


def test_requests_that_never_fit_are_told_with_numbers(slob: Slob, folder: tuple[str, str]) -> None:
    answer = slob("simulate", *SYSTEM, *QUICK, *folder, "-w", "office_chat", "--load", 3, "--kv-blocks", 150)
    assert answer.code == 0, answer.err
    assert "KV blocks of 16 tokens, the pipeline has 150" in answer.out


def test_runs_are_tracked_with_a_child_a_policy(slob: Slob, folder: tuple[str, str]) -> None:
    answer = slob(
        "simulate", *SYSTEM, "--duration", "1min", *folder, "-w", "office_chat", "--load", 2, "-p", "orca,slob"
    )
    assert answer.code == 0, answer.err
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{Path(folder[1]) / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("slob-simulate")
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(run.info.run_name for run in runs) == ["orca", "simulate", "slob"]
    child = next(run for run in runs if run.info.run_name == "slob")
    assert child.data.metrics["mean_satisfaction"] > 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-w", "ofice_chat"), "did you mean 'office_chat'"),
        (("-w", "missing.csv"), "missing.csv: no such file"),
        (("-w", "office_chat", "-p", "chunkd"), "no policy 'chunkd'; did you mean 'chunked'"),
        (("-w", "office_chat", "--dispatcher", "slb"), "no dispatcher 'slb'"),
        (("-w", "office_chat", "--load", "1", "--rate", "1"), "--load and --rate say the same"),
        (("-w", "office_chat", "--thin", "0.5"), "--thin is for traces"),
        (("-w", "example", "--load", "2"), "--load is for presets"),
        (("-w", "example", "--rate", "2"), "needs --arrivals"),
        (("-w", "office_chat", "--horizon", "soon"), "--horizon"),
    ],
)
def test_wrong_options_are_one_sentence(options: tuple[str, ...], words: str, slob: Slob) -> None:
    answer = slob("simulate", *SYSTEM, *options, "--no-track")
    assert answer.code == 2
    assert words in answer.err
    assert answer.err.count("\n") == 1


def test_an_empty_trace_is_one_sentence(slob: Slob, tmp_path: Path) -> None:
    trace = tmp_path / "empty.csv"
    trace.write_text("", encoding="utf-8")
    answer = slob("simulate", *SYSTEM, "-w", trace, "--no-track")
    assert answer.code == 2
    assert "empty.csv" in answer.err


def test_without_a_system_it_says_what_is_missing(slob: Slob) -> None:
    answer = slob("simulate", "-w", "office_chat", "--no-track")
    assert answer.code == 2
    assert "give --cluster and --model, or a --plan" in answer.err


def test_the_configuration_can_be_shown_alone(slob: Slob) -> None:
    answer = slob("simulate", *SYSTEM, "-w", "office_chat", "--show-config")
    assert json.loads(answer.out)["policies"][0]["policy"] == "slob"


def test_traces_are_written_where_they_are_asked_for(slob: Slob, folder: tuple[str, str]) -> None:
    answer = slob("simulate", *SYSTEM, *QUICK, *folder, "-w", "office_chat", "--load", 2, "-p", "orca,slob", "--trace")
    assert answer.code == 0, answer.err
    names = {path.name for path in Path(folder[1]).iterdir()}
    assert {f"{policy}.{end}" for policy in ("orca", "slob") for end in ("trace.jsonl", "chrome.json")} <= names
    assert "slob-gantt.svg" in names
