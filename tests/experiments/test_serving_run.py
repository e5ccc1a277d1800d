"""A workload served once: figures, other specifications, rejections, requests alone."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from serving_systems import one_l4, two_replicas

from experiments.serving_output import DECILES, REQUEST_COLUMNS, point_row, quantiles, requests_csv, run_summary
from experiments.serving_records import POINT_METRICS, Simulated, curve_records, point_metrics, simulation_records
from experiments.serving_run import PolicyChoice, RunOptions, serve, served_alone
from experiments.serving_setup import ServingOptions
from slob_opt.errors import InputError
from slob_opt.metrics.outcomes import Outcome, Outcomes
from slob_opt.metrics.satisfaction import Decay, SatisfactionSpec
from slob_opt.metrics.satisfaction_columns import satisfaction_column
from slob_opt.problem.workload import Workload
from slob_opt.simulation.options import EngineOptions

SHORT = SatisfactionSpec(scale_s=1.0, decay=Decay.EXPONENTIAL)


def burst(size: int = 30) -> Workload:
    """Requests that come faster than an L4 serves them."""
    return Workload.of("burst", np.arange(size) * 0.2, [1500] * size, [150] * size, max_new_tokens=400)


def test_other_specifications_are_measured_on_the_same_tokens() -> None:
    kept: list[Outcome] = []
    workload = burst()
    run = serve(
        workload, one_l4(), PolicyChoice("orca", "orca"), RunOptions(family=(("short", SHORT),)), keep=kept.append
    )
    record = Outcomes.of(workload, kept, run.end_ns)
    assert run.family["short"] == pytest.approx(satisfaction_column(record, SHORT), abs=1e-9)
    assert run.columns.satisfaction == pytest.approx(satisfaction_column(record, SatisfactionSpec()), abs=1e-9)
    assert run.family["short"].mean() < run.columns.satisfaction.mean() < 1


def test_the_same_run_twice_is_the_same() -> None:
    first, second = (serve(burst(), two_replicas(), PolicyChoice("slob", "slob", "power-of-two")) for _ in range(2))
    assert first.columns.e2e_s.tolist() == second.columns.e2e_s.tolist()


def test_what_can_never_fit_is_counted_and_told_with_its_numbers() -> None:
    workload = Workload.of("long", [0.0, 1.0, 2.0], [100, 5000, 6000], [10, 10, 10])
    run = serve(workload, one_l4(ServingOptions(kv_blocks=100)), PolicyChoice("chunked", "chunked"))
    [(reason, count)] = run.reasons
    assert count == 2
    assert "5010 tokens need 314 KV blocks of 16 tokens, the pipeline has 100" in reason
    assert run.columns.satisfaction.tolist()[1:] == [0, 0]
    assert run.waited_s.size == 1  # rejected requests wait for nothing


def test_alone_is_the_best_pipeline_without_company() -> None:
    """Requests far apart fare as they do alone, and two replicas are as good as the better one of them."""
    size = 5
    apart = Workload.of("apart", np.arange(size) * 300.0, [400] * size, [80] * size)
    alone = served_alone(apart, one_l4())
    run = serve(apart, one_l4(), PolicyChoice("orca", "orca"))
    assert run.columns.e2e_s == pytest.approx(alone.e2e_s)
    best = served_alone(apart, two_replicas())
    assert best.service_s < alone.service_s
    assert np.all(best.satisfaction >= alone.satisfaction)


def test_alone_knows_what_fits_nowhere() -> None:
    workload = Workload.of("long", [0.0], [9000], [10])
    alone = served_alone(workload, one_l4(ServingOptions(kv_blocks=100)))
    assert alone.satisfaction.tolist() == [0.0]
    assert np.isnan(alone.service_s)


def test_choices_travel_to_other_processes() -> None:
    choice = PolicyChoice("c", "chunked", "random", {"chunk_tokens": 64})
    assert pickle.loads(pickle.dumps(choice)) == choice
    assert pickle.loads(pickle.dumps(two_replicas())).limits == two_replicas().limits


def test_a_summary_holds_all_figures_and_a_row_those_of_studies() -> None:
    workload = burst()
    system = two_replicas()
    alone = served_alone(workload, system)
    run = serve(workload, system, PolicyChoice("slob", "slob", "slob"))
    summary = run_summary(run, alone, SatisfactionSpec())
    assert {"mean_relative_satisfaction", "bubble_share", "request_goodput", "p99_wait_s", "mean_qoe"} <= set(summary)
    row = point_row(run, summary)
    assert row["num_requests"] == 30
    assert len(row["ttft_deciles_s"]) == len(DECILES) == 21  # type: ignore[arg-type]
    assert {name for name, _ in point_metrics(row)} == set(POINT_METRICS)
    lines = list(requests_csv([run], alone))
    assert lines[0] == ",".join(REQUEST_COLUMNS) + "\n"
    assert len(lines) == 31
    assert all(line.count(",") == len(REQUEST_COLUMNS) - 1 for line in lines)
    _, children = simulation_records({}, provenance(), [Simulated(run, summary, row)], "summary.json")
    assert dict(children[0].metrics)["num_requests"] == 30


def provenance() -> object:
    from experiments.provenance import collect

    return collect()


def test_points_of_a_curve_become_one_record() -> None:
    base = {
        "kind": "point",
        "cluster": "c",
        "preset": "p",
        "engine": "ragged",
        "policy": "slob",
        "params": "{}",
        "seed": 0,
    }
    rows = [base | {"load": load, "rate_per_s": load, "mean_satisfaction": 1 / load} for load in (1.0, 2.0)]
    [record] = curve_records("paper", rows)
    assert record.name == "c/p/ragged/slob"
    assert dict(record.metrics) == {"mean_satisfaction": 0.75}
    assert len(record.tables[0].rows) == 2


def test_quantiles_of_nothing_are_none() -> None:
    assert quantiles(np.zeros(0)) is None


def test_noise_and_padding_reach_the_engine() -> None:
    plain = serve(burst(10), one_l4(), PolicyChoice("orca", "orca"))
    noisy = serve(burst(10), one_l4(), PolicyChoice("orca", "orca"), RunOptions(EngineOptions(noise=0.2, seed=3)))
    assert plain.columns.e2e_s.tolist() != noisy.columns.e2e_s.tolist()
    ragged = Workload.of("two", [0.0, 0.0], [100, 1000], [20, 20])
    padded = serve(ragged, one_l4(), PolicyChoice("orca", "orca"), RunOptions(EngineOptions(is_padded=True)))
    assert sum(stage.padding_tokens for stages in padded.pipelines for stage in stages) >= 900


def test_a_wrong_name_is_told_before_anything_runs() -> None:
    with pytest.raises(InputError, match="did you mean 'orca'"):
        serve(burst(), one_l4(), PolicyChoice("x", "orcs"))
