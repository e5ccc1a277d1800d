"""The smaller commands: catalogue, doctor, study."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments import registry
from experiments.cli import doctor as doctor_command
from experiments.cli import study as study_command
from experiments.environment_check import (
    Check,
    check_devices,
    check_packages,
    check_python,
    check_shadowing,
    check_solvers,
    parse_nvidia_smi,
)
from experiments.provenance import Machine, Provenance
from experiments.run_record import RunRecord
from experiments.study_contract import Claim, StudyOptions, StudySummary
from slob_opt.errors import InputError
from slob_opt.problem import catalogue

Slob = Callable[..., Any]

SMI = """00000000:41:00.0, GPU-bbb, NVIDIA L4, 23034 MiB
00000000:01:00.0, GPU-aaa, NVIDIA A100-PCIE-40GB, 40960 MiB
"""


@pytest.mark.parametrize(
    ("kind", "ids"),
    [("gpus", catalogue.gpu_ids), ("models", catalogue.model_ids), ("clusters", catalogue.cluster_ids)],
)
def test_the_catalogue_lists_everything(kind: str, ids: Callable[[], tuple[str, ...]], slob: Slob) -> None:
    data = json.loads(slob("catalog", kind, "--format", "json").out)
    assert [entry["id"] for entry in data["entries"]] == list(ids())
    assert all("uncertain" in entry for entry in data["entries"])
    table = slob("catalog", kind).out
    assert all(name in table for name in list(ids())[:3])


def test_doctor_finds_this_environment_fit() -> None:
    """In a process of its own: what solvers print past Python must not stand in front of the JSON."""
    command = [sys.executable, "-m", "experiments.cli.main", "doctor", "--format", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    data = json.loads(answer.stdout)
    assert answer.returncode == 0, [c for c in data["checks"] if c["state"] == "broken"]
    names = {check["name"] for check in data["checks"]}
    assert {"python", "packages", "numpy", "ortools", "torch", "solver highs", "solver cp-sat"} <= names


def test_doctor_says_no_when_something_is_broken(slob: Slob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_command, "check_all", lambda order: (Check("numpy", "broken", "needed"),))
    answer = slob("doctor")
    assert answer.code == 1
    assert "broken" in answer.out


def test_an_old_python_is_broken() -> None:
    assert check_python((3, 10, 4)).state == "broken"
    assert check_python().state == "ok"


def test_packages_are_looked_up_without_importing_them() -> None:
    before = set(sys.modules)
    assert {check.name for check in check_packages()} >= {"numpy", "torch", "mlflow"}
    assert not {"torch", "transformers"} & (set(sys.modules) - before)


def test_a_solver_that_can_t_be_loaded_is_told() -> None:
    absent, broken, dead, fine = check_solvers(
        {
            "a": "import no_such_solver",
            "b": "raise OSError('libstdc++.so.6: version not found')",
            "c": "import os; os.abort()",
            "d": "print('a banner'); name = 'D 1.0'",
        }
    )
    assert [check.state for check in (absent, broken, dead, fine)] == ["absent", "broken", "broken", "ok"]
    assert "pip install 'slob[exact]'" in absent.detail
    assert "libstdc++" in broken.detail
    assert "code" in dead.detail
    assert fine.detail == "D 1.0"


def test_a_foreign_package_that_shadows_ours_is_found(tmp_path: Path) -> None:
    folders = {name: tmp_path / "ours" / name for name in ("slob_opt", "solvers", "experiments", "runtime")}
    assert check_shadowing(folders.get).state == "ok"
    folders["runtime"] = tmp_path / "theirs" / "runtime"
    shadowed = check_shadowing(folders.get)
    assert shadowed.state == "broken"
    assert "runtime from" in shadowed.detail
    assert check_shadowing({"slob_opt": tmp_path}.get).state == "broken"


def test_cards_are_listed_in_pci_order_by_uuid() -> None:
    assert [row[1] for row in parse_nvidia_smi(SMI)] == ["GPU-aaa", "GPU-bbb"]
    checks = check_devices(None, lambda command: SMI)
    assert "A100" in checks[0].detail
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in checks[-1].detail
    assert len(check_devices("PCI_BUS_ID", lambda command: SMI)) == 2


def test_a_failing_nvidia_smi_is_told() -> None:
    def fail(command: list[str]) -> str:
        raise FileNotFoundError("nvidia-smi")

    assert check_devices(None, fail)[0].state == "broken"
    assert check_devices(None, lambda command: "")[0].state == "absent"


def summary_of(options: StudyOptions, *, holds: bool) -> StudySummary:
    options.progress("one instance")
    machine = Machine("m", "Linux", None, 2, None)
    return StudySummary(
        "gap",
        (Claim("gap.instances", 3.0 if options.is_quick else 300.0, "", ">= 3", holds),),
        ({"instance": "a", "gap_pct": 0.0}, {"instance": "b", "note": "c"}),
        Provenance("abc", (("numpy", "2"),), "3.11.7", machine, "2026-01-01T00:00:00+00:00"),
        (RunRecord("a/slob", tags=(("method", "slob"),), metrics=(("gap_pct", 0.0),)),),
    )


@pytest.mark.parametrize("holds", [True, False])
def test_a_study_writes_prints_and_stores_its_summary(
    holds: bool, slob: Slob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setattr(study_command, "load_target", lambda target: lambda options: summary_of(options, holds=holds))
    out = tmp_path / "s"
    answer = slob("study", "gap", "--quick", "--format", "json", "--out", out)
    assert answer.code == (0 if holds else 1)
    data = json.loads(answer.out)
    assert data == json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert list(data) == ["study", "claims", "rows", "provenance", "config"]
    assert data["claims"] == [{"id": "gap.instances", "value": 3.0, "unit": "", "target": ">= 3", "holds": holds}]
    client = mlflow.tracking.MlflowClient(f"sqlite:///{out}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("slob-study-gap").experiment_id])
    assert len(runs) == 2
    parent = next(run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    assert parent.data.metrics == {"gap.instances": 3.0}
    assert {a.path for a in client.list_artifacts(parent.info.run_id)} == {"rows.csv", "summary.json"}


def test_an_unknown_study_is_told_the_nearest(slob: Slob) -> None:
    answer = slob("study", "scales")
    assert answer.code == 2
    assert "did you mean 'scale'?" in answer.err
    assert set(registry.STUDIES) >= {"gap", "scale", "paper", "policies", "tuning", "sensitivity", "speed"}


def test_claims_are_a_published_list() -> None:
    with pytest.raises(InputError, match="published"):
        Claim("gap.invented", 1.0, "", "", True)
    with pytest.raises(InputError, match="together"):
        Claim("gap.instances", None, "", "", True)
    with pytest.raises(InputError, match="finite"):
        Claim("gap.instances", float("nan"), "", "", True)
