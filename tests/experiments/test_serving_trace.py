from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.serving_output import run_summary
from experiments.serving_run import PolicyChoice, RunOptions, serve, served_alone
from experiments.serving_setup import ServingOptions, ServingSystem, make_system
from experiments.serving_trace import record_run, write_trace_files
from slob_opt.metrics.load import load_figures
from slob_opt.metrics.trace_reader import read_trace
from slob_opt.problem.catalogue.gpus import gpu_device
from slob_opt.problem.catalogue.models import model
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Link
from slob_opt.problem.placement import Pipeline, Placement, Stage
from slob_opt.problem.workload import Workload
from slob_opt.simulation.options import EngineOptions


@pytest.fixture(scope="module")
def system() -> ServingSystem:
    cards = tuple(gpu_device(gpu, f"n/{i}") for i, gpu in enumerate(("l4", "rtx-3090", "rtx-4090")))
    cluster = Cluster("three", (Node("n", cards),), Link(1e9, 1e-4), Link(1e10, 1e-5))
    pair, single = Pipeline((Stage((0,), 0, 14), Stage((1,), 14, 32)), 2), Pipeline((Stage((2,), 0, 32),))
    options = ServingOptions(max_rows=8, chunk_tokens=256)
    return make_system("three", cluster, model("llama-3.1-8b"), Placement((pair, single)), options)


def workload() -> Workload:
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(0.4, 30))
    return Workload.of("w", arrivals, rng.integers(10, 900, 30), rng.integers(2, 60, 30), max_new_tokens=64)


@pytest.mark.parametrize("policy", ["chunked", "slob"])
@pytest.mark.parametrize("is_padded", [False, True])
def test_the_trace_is_that_of_the_run(policy: str, is_padded: bool, system: ServingSystem, tmp_path: Path) -> None:
    """Watching a run changes nothing: all figures from the file equal those of the run that leaps, to the bit."""
    choice = PolicyChoice(policy, policy)
    options = RunOptions(EngineOptions(is_padded=is_padded))
    trace = record_run(tmp_path / "t.jsonl", workload(), system, choice, options)
    run = serve(workload(), system, choice, options)
    assert trace.loads() == run.pipelines
    assert load_figures(trace.loads(), trace.end_ns) == load_figures(run.pipelines, run.end_ns)
    again = trace.accumulate().columns()
    for name in ("status", "delivered", "queueing_s", "ttft_s", "tpot_s", "e2e_s", "satisfaction", "qoe"):
        np.testing.assert_array_equal(getattr(again, name), getattr(run.columns, name))
    assert run_summary(run, served_alone(workload(), system), options.spec)["mean_satisfaction"] == pytest.approx(
        float(again.satisfaction.mean()), abs=1e-12
    )


def test_a_run_as_files(system: ServingSystem, tmp_path: Path) -> None:
    choice = PolicyChoice("mine", "orca", "round-robin")
    files = write_trace_files(tmp_path / "new", workload(), system, choice, RunOptions(seed=4), name="example")
    assert [path.name for path in (files.trace, files.chrome, *files.plots)] == [
        "example.trace.jsonl", "example.chrome.json", "example-gantt.png", "example-gantt.svg",
    ]  # fmt: skip
    header = read_trace(files.trace).header
    assert (header.policy, header.dispatcher, header.engine, header.seed) == ("mine", "round-robin", "ragged", 4)
    assert [[stage.name for stage in pipeline.stages] for pipeline in header.pipelines] == [["n/0", "n/1"], ["n/2"]]
    assert [pipeline.num_lanes for pipeline in header.pipelines] == [2, 1]
    assert dict(header.fingerprints)["workload"] == workload().fingerprint
    assert {len(value) for _, value in header.fingerprints} == {64}
    events = json.loads(files.chrome.read_text(encoding="utf-8"))["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}


def test_equal_runs_are_equal_files(system: ServingSystem, tmp_path: Path) -> None:
    choice = PolicyChoice("chunked", "chunked")
    for name in ("a", "b"):
        record_run(tmp_path / name, workload(), system, choice)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
