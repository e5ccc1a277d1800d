"""Simulated requests per second through the public Scheduler: one A100, and four unequal cards in a pipeline."""

from __future__ import annotations

from typing import Any

import pytest
from serving_setups import chat, four_cards, one_card, play

from slob_opt.scheduling.policies.fcfs import OrcaPolicy
from slob_opt.scheduling.policy import PipelineLimits
from slob_opt.slob.batching import SlobPolicy

ONE = PipelineLimits(1, 128, 25_000, 16, 512)
FOUR = PipelineLimits(4, 128, 12_500, 16, 512)


@pytest.mark.benchmark(group="simulated serving, one card at 4 requests/s")
@pytest.mark.parametrize("policy", [OrcaPolicy(), SlobPolicy()], ids=lambda policy: policy.name)
def test_one_card(benchmark: Any, policy: Any) -> None:
    workload, clock = chat(1000, 4.0), one_card()
    found = benchmark.pedantic(lambda: play(workload, policy, clock, ONE, keeps_log=False), rounds=3, warmup_rounds=1)
    assert found.result.num_finished == 1000
    benchmark.extra_info["requests_per_s"] = 1000 / benchmark.stats.stats.min


@pytest.mark.benchmark(group="simulated serving, four unequal stages")
@pytest.mark.parametrize("rate", [2.0, 0.25])
def test_four_stages(benchmark: Any, rate: float) -> None:
    workload, clock = chat(400, rate), four_cards()
    found = benchmark.pedantic(
        lambda: play(workload, OrcaPolicy(), clock, FOUR, keeps_log=False), rounds=3, warmup_rounds=1
    )
    assert found.result.num_finished == 400
    benchmark.extra_info["requests_per_s"] = 400 / benchmark.stats.stats.min
