"""`slob calibrate`: profile, table, JSON, and the cluster file of emulated cards, with a tiny real model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measured_profiles import profile_for, small_model

from runtime.tiny_model import TinyModel, write_tiny_model
from slob_opt.problem.files import load_cluster, load_profile
from slob_opt.problem.files.profile_file import write_profile
from slob_opt.problem.files.workers_file import load_workers

Slob = Callable[..., Any]
MIB = 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = TinyModel(num_layers=2, hidden_size=32, ffn_size=48, max_position=32)
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", model)


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """A profile that was measured before."""
    path = tmp_path / "known.json"
    write_profile(profile_for(small_model()), path)
    return path


def test_a_profile_is_measured_written_and_told(slob: Slob, folder: Path, tmp_path: Path) -> None:
    out, plot = tmp_path / "new" / "profile.json", tmp_path / "fit.svg"
    answer = slob("calibrate", "--model", folder, "--quick", "--rounds", "1", "--out", out, "--plot", plot)
    assert answer.code == 0, answer.err
    profile = load_profile(out)
    assert profile.model.num_layers == 2
    assert profile.hardware.name in answer.out
    for part in ("tiny in float32 on", "held out", "each iteration of a stage", f"profile: {out}", f"plot: {plot}"):
        assert part in answer.out
    assert plot.is_file()


def test_json_holds_every_measurement(slob: Slob, folder: Path) -> None:
    answer = slob("calibrate", "--model", folder, "--quick", "--rounds", "1", "--format", "json")
    assert answer.code == 0, answer.err
    data = json.loads(answer.out)
    assert len(data["measurements"]) == data["profile"]["fit"]["num_measurements"]
    assert data["config"]["quick"] is True
    assert data["files"] == {"profile": None, "cluster": None, "workers": None, "plot": None}


def test_a_cluster_of_emulated_cards_is_made_of_a_profile(
    slob: Slob, known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    path, workers = tmp_path / "c" / "box.yaml", tmp_path / "workers.yaml"
    answer = slob(
        "calibrate", "--profile", known, "--cluster-out", path, "--workers-out", workers,
        "--slowdown", "1,3", "--memory", "300MiB,600MiB",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    cluster, profile = load_cluster(path), load_profile(known)
    assert [(card.name, card.measured, card.memory_bytes) for card in cluster.devices] == [
        ("box/0", profile, 300 * MIB),
        ("box/1", profile.scaled(3), 600 * MIB),
    ]
    assert "measured: ../known.json" in path.read_text(encoding="utf-8")
    assert cluster.link(0, 1).latency_s > 0
    assert [(w.device, w.slowdown, w.memory_bytes) for w in load_workers(workers)] == [
        ("box/0", 1.0, 300 * MIB),
        ("box/1", 3.0, 600 * MIB),
    ]
    assert f"cluster: {path}" in answer.out
    planned = slob("plan", "--cluster", path, "--model", "tinyllama-1.1b", "--methods", "even")
    assert planned.code == 2
    assert "was measured with small, model tinyllama-1.1b has layers 22, measured was 8" in planned.err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ((), "give --model to measure, or --profile"),
        (("--model", "x", "--profile", "KNOWN"), "give --model to measure, or --profile"),
        (("--profile", "KNOWN", "--out", "p.json"), "--out belongs to a measurement"),
        (("--profile", "KNOWN", "--slowdown", "2"), "describe the cards of --cluster-out"),
        (("--profile", "KNOWN", "--cluster-out", "c.yaml"), "--cluster-out needs --memory"),
        (
            ("--profile", "KNOWN", "--cluster-out", "c.yaml", "--memory", "1GiB", "--slowdown", "fast"),
            "--slowdown: found 'fast', expected numbers as 1,3",
        ),
        (
            ("--profile", "KNOWN", "--cluster-out", "c.yaml", "--memory", "1", "--slowdown", "2"),
            "--memory: found '1' without a unit",
        ),
        (
            ("--profile", "KNOWN", "--cluster-out", "c.yaml", "--memory", "1GiB", "--slowdown", "0.5"),
            "--slowdown: slowdown 0.5, expected at least 1",
        ),
        (
            ("--profile", "KNOWN", "--cluster-out", "c.yaml", "--memory", "1GiB", "--slowdown", "1,1"),
            "--slowdown: cards with slowdowns 1, 1 take 2.00 cores together, the machine has 2",
        ),
        (("--profile", "none.json"), "none.json: no such file"),
    ],
)
def test_wrong_calls_are_one_sentence(
    argv: tuple[str, ...], sentence: str, slob: Slob, known: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.chdir(tmp_path)
    answer = slob("calibrate", *(known if word == "KNOWN" else word for word in argv))
    assert answer.code == 2
    assert sentence in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_the_configuration_is_shown_without_measuring(slob: Slob, folder: Path) -> None:
    answer = slob("calibrate", "--model", folder, "--dtype", "bfloat16", "--seed", "3", "--show-config")
    data = json.loads(answer.out)
    assert (data["dtype"], data["seed"], data["model"]) == ("bfloat16", 3, str(folder))
