"""The presets against their stated statistics."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from reference_data import reference_file

from slob_opt.errors import InputError
from slob_opt.problem.files.traces import read_trace
from slob_opt.problem.presets import EXAMPLE_TRACE, load_preset, preset_ids, sample_preset
from slob_opt.problem.workload_stats import WorkloadStats, workload_stats

DAYS = 20
# The stated numbers of requests are single draws of 20 days, which vary by 1 to 3 % from seed to seed, so that the mean
# over seeds needn't lie within 3 % of them: they are compared with one draw, and the mean with the parameters.
SEED = {"office_chat": 0, "shop_floor_qa": 0, "doc_summary": 2, "code_assistant": 0}


def stats_of(name: str, seed: int) -> WorkloadStats:
    workload = sample_preset(name, seed, days=DAYS)
    return workload_stats(workload, span_s=DAYS * load_preset(name).day_s)


def stated(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reference_file("presets.json").read_text(encoding="utf-8"))["stats"][name]
    return found


@pytest.mark.parametrize("name", preset_ids())
def test_a_sample_matches_the_stated_statistics(name: str) -> None:
    """Numbers and means within 3 %, variation, dispersion and peak within 15 %, quantiles of lengths within 10 %."""
    expected, found = stated(name), stats_of(name, SEED[name])
    assert found.num_requests == pytest.approx(expected["n"], rel=0.03)
    assert found.rate == pytest.approx(expected["rate"], rel=0.03)
    assert found.prompt_mean == pytest.approx(expected["in_mean"], rel=0.03)
    assert found.output_mean == pytest.approx(expected["out_mean"], rel=0.03)
    assert found.gap_cv == pytest.approx(expected["iat_cv"], rel=0.15)
    assert found.dispersion_60 == pytest.approx(expected["IDC_60"], rel=0.15)
    assert found.dispersion_600 == pytest.approx(expected["IDC_600"], rel=0.15)
    assert found.peak_rate == pytest.approx(expected["peak_hour_p99"], rel=0.15)
    assert found.prompt_quantiles == pytest.approx(expected["in_p5_50_95_99"], rel=0.1)
    assert found.output_quantiles == pytest.approx(expected["out_p5_50_95_99"], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", preset_ids())
def test_the_mean_over_seeds_matches_parameters_and_statistics(name: str) -> None:
    expected, found = stated(name), [stats_of(name, seed) for seed in range(100, 130)]

    def mean(key: str) -> float:
        return float(np.mean([getattr(stats, key) for stats in found]))

    assert mean("rate") == pytest.approx(load_preset(name).mean_rate, rel=0.015)
    assert mean("prompt_mean") == pytest.approx(expected["in_mean"], rel=0.03)
    assert mean("output_mean") == pytest.approx(expected["out_mean"], rel=0.03)
    assert mean("gap_cv") == pytest.approx(expected["iat_cv"], rel=0.15)
    assert mean("dispersion_60") == pytest.approx(expected["IDC_60"], rel=0.15)
    assert mean("dispersion_600") == pytest.approx(expected["IDC_600"], rel=0.15)


@pytest.mark.parametrize("name", preset_ids())
def test_numbers_are_those_of_the_source(name: str) -> None:
    """Spot checks of each preset against the reference: clips, targets, variants."""
    presets = json.loads(reference_file("presets.json").read_text(encoding="utf-8"))["presets"]
    row, preset = next(r for r in presets if r["id"] == name), load_preset(name)
    assert preset.output.most == row["output"]["clip"][1]
    assert (preset.ttft_s, preset.tpot_s) == (row["slo"]["ttft"], row["slo"]["tpot"])
    assert preset.prompt is None or preset.prompt.most == row["input"]["clip"][1]
    assert set(preset.variants) == {variant["name"] for variant in row.get("input_variants", [])}
    assert preset.sources


@pytest.mark.parametrize("name", preset_ids())
def test_limits_targets_and_order(name: str) -> None:
    """The longest output is every client's limit; targets are the preset's."""
    preset, workload = load_preset(name), sample_preset(name, 5, days=2)
    assert set(workload.max_new_tokens.tolist()) == {int(preset.output.most)}
    assert workload.output_tokens.max() <= preset.output.most
    assert workload.ttft_s is not None
    assert workload.tpot_s is not None
    assert (workload.ttft_s[0], workload.tpot_s[-1]) == (preset.ttft_s, preset.tpot_s)
    assert 0 <= workload.arrival_s[0] <= workload.arrival_s[-1] < 2 * preset.day_s
    assert (workload.session is not None) == (name == "office_chat")
    assert workload.fingerprint == sample_preset(name, 5, days=2).fingerprint
    assert workload.fingerprint != sample_preset(name, 6, days=2).fingerprint


@pytest.mark.parametrize("name", preset_ids())
def test_an_even_load_has_its_rate_in_every_hour(name: str) -> None:
    """Mean over 40 one-hour samples at half a request per second, the first quarter of an hour like the last."""
    counts = np.zeros((40, 4))
    for seed in range(40):
        workload = sample_preset(name, seed, duration_s=3600.0, rate_per_s=0.5, is_even=True)
        counts[seed] = np.histogram(workload.arrival_s, np.linspace(0, 3600, 5))[0]
    # standard deviation of a quarter's count sqrt(D x 450), D up to 23 x 0.5/0.3: 130, of the mean of 40 runs 21
    assert counts.mean(axis=0) == pytest.approx([450.0] * 4, abs=60.0)


def test_conversations_are_under_way_when_an_even_load_starts() -> None:
    """Prompts of the first minutes are as long as later ones; a day, in contrast, starts with first turns only."""
    even = sample_preset("office_chat", 3, duration_s=7200.0, rate_per_s=5.0, is_even=True)
    day = sample_preset("office_chat", 3, rate_per_s=5.0)
    early, late = even.arrival_s < 300, even.arrival_s >= 3600
    assert even.prompt_tokens[early].mean() == pytest.approx(even.prompt_tokens[late].mean(), rel=0.1)
    assert day.prompt_tokens[day.arrival_s < 60].mean() < 0.5 * even.prompt_tokens[early].mean()


def test_a_rate_means_more_people_of_the_same_kind() -> None:
    """Ten times the users: ten times the requests, as long as before."""
    few, many = sample_preset("office_chat", 1, days=4), sample_preset("office_chat", 1, days=4, rate_per_s=0.2378)
    assert load_preset("office_chat").mean_rate == pytest.approx(0.02378, rel=1e-3)
    assert many.num_requests == pytest.approx(10 * few.num_requests, rel=0.05)
    assert many.prompt_tokens.mean() == pytest.approx(few.prompt_tokens.mean(), rel=0.1)


def test_variants_change_the_prompts() -> None:
    short, long = (sample_preset("doc_summary", 0, days=5, variant=v) for v in ("arxiv-4k", "mooncake-128k"))
    assert (short.name, short.prompt_tokens.max() <= 4054) == ("doc_summary/arxiv-4k", True)
    assert long.prompt_tokens.mean() == pytest.approx(12_035, rel=0.1)  # the mean of Mooncake's conversations
    assert short.arrival_ns.tolist() == long.arrival_ns.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "office-chat2"}, "no preset 'office-chat2'; did you mean office_chat"),
        ({"variant": "long"}, "preset office_chat has no variant 'long'; it has none"),
        ({"name": "doc_summary", "variant": "long"}, "no variant 'long'; expected one of arxiv-4k, mooncake-128k"),
        ({"days": 0}, "days"),
        ({"duration_s": -1.0}, "duration_s"),
        ({"rate_per_s": 0.0}, "rate_per_s"),
        ({"rate_per_s": 1e6}, "are about 39,600,000,000 requests, expected at most 100,000,000"),
        ({"duration_s": 1.0}, "no request of preset office_chat falls into 1 s at 0.0238 requests/s"),
    ],
)
def test_wrong_arguments_are_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sample_preset(**{"name": "office_chat", "seed": 0, **arguments})


def test_the_trace_that_ships_is_the_sample_that_it_says() -> None:
    """Lengths and times of half a day; not byte by byte, since numpy may change its streams."""
    shipped, _ = read_trace(EXAMPLE_TRACE)
    again = workload_stats(sample_preset("office_chat", 0, days=0.5))
    found = workload_stats(shipped)
    assert shipped.name == "example"
    assert found.num_requests == pytest.approx(again.num_requests, rel=0.2)
    assert found.prompt_mean == pytest.approx(again.prompt_mean, rel=0.3)
    assert found.num_sessions is not None
