"""The demo from end to end: measured, planned, proven, served from two processes, and compared with its simulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.cli.main import main
from slob_opt.metrics.trace_reader import read_trace
from slob_opt.problem.files.plan_file import read_plan


@pytest.mark.slow
def test_a_tiny_model_is_planned_proven_served_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLOB_MODELS", str(tmp_path / "models"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    out = tmp_path / "demo"
    main(["demo", "--model", "tiny-llama", "--out", str(out)])
    printed = capfd.readouterr().out
    assert "certificate: memory and times recomputed exactly, plan valid" in printed
    assert "emulated" in printed
    plan = read_plan(out / "plan.json")
    assert plan.certificate is not None
    assert plan.certificate.bound_status == "verified"
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["is_emulated"]
    assert set(summary["measured"]) == set(summary["simulated"]) >= {"mean_satisfaction", "median_ttft_ms"}
    trace = read_trace(out / "trace.jsonl")
    assert trace.header.source == "runtime"
    tokens = trace.outcomes.workload.output_tokens
    assert trace.outcomes.token_start.tolist()[1:] == tokens.cumsum().tolist()
    # An emulated tiny model answers at once, in simulation and for real.
    assert summary["measured"]["mean_satisfaction"] > 0.9
    assert summary["simulated"]["mean_satisfaction"] > 0.9
    assert (out / "mlflow.db").is_file()
