"""The speed study's cases and claims; its times are measured by the study, never here."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.studies import speed
from experiments.studies.speed_cases import (
    CONVERSATIONS,
    KV_TOKENS,
    conversation_lengths,
    four_unequal,
    one_a100,
    poisson_workload,
)


def timing(case: str, req_per_cpu_s: float, **more: object) -> dict:
    return {"case": case, "req_per_cpu_s": req_per_cpu_s, **more}


def test_claims_come_from_their_cases() -> None:
    rows = [
        timing("orca", 7000.0), timing("slob", 1500.0), timing("pipeline4", 2500.0), timing("growth-few", 6600.0),
        timing("growth-many", 6000.0), timing("million", 1.0, peak_mb=700.0),
    ]  # fmt: skip
    claims = {c.id: c for c in speed.speed_claims(rows)}
    assert claims["speed.orca_req_per_cpu_s"].holds
    assert claims["speed.slob_req_per_cpu_s"].holds is False
    assert claims["speed.growth_100k_vs_4k"].value == pytest.approx(1.1)
    assert claims["speed.million_peak_mb"].holds
    quick = {c.id: c for c in speed.speed_claims(rows[:-1], is_quick=True)}
    assert quick["speed.growth_100k_vs_4k"].holds is None
    assert quick["speed.million_peak_mb"].holds is None


def test_the_cases_are_those_of_the_claim() -> None:
    full = {case.name: case for case in speed.cases(is_quick=False)}
    assert (full["orca"].rate_per_s, full["orca"].num_requests) == (4.0, 4_000)
    assert (full["growth-few"].num_requests, full["growth-many"].num_requests) == (4_000, 100_000)
    assert (full["pipeline4"].rate_per_s, full["pipeline4-sparse"].rate_per_s) == (2.0, 0.25)
    [limits] = one_a100().limits
    assert (limits.kv_blocks * limits.block_tokens, limits.max_rows, limits.max_chunk_tokens) == (KV_TOKENS, 128, 512)
    [limits] = four_unequal().limits
    assert (limits.num_lanes, len(four_unequal().clocks[0].stages)) == (4, 4)


def test_a_case_is_timed() -> None:
    case = replace(speed.cases(is_quick=True)[0], num_requests=20, times=1)
    row = speed.timed(case, conversation_lengths(None), 0)
    assert row["num_finished"] == 20
    assert row["req_per_cpu_s"] > 0
    json.dumps(row, allow_nan=False)


def test_lengths_are_the_traces_where_it_is_at_hand(tmp_path: Path) -> None:
    """Without it a fitted sample stands in, and says so; its means are those of the trace within 5 per cent."""
    fitted = conversation_lengths(tmp_path)
    assert "fitted" in fitted.source
    assert float(fitted.prompt.mean()) == pytest.approx(1155, rel=0.05)
    assert float(fitted.output.mean()) == pytest.approx(211, rel=0.05)
    path = tmp_path / CONVERSATIONS
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n")
    real = conversation_lengths(tmp_path)
    assert real.prompt.tolist() == [374]
    assert real.source == "Azure 2023 conversations"


def test_arrivals_are_poisson_and_repeat() -> None:
    lengths = conversation_lengths(None)
    first, second = (poisson_workload(lengths, 4_000, 4.0, 1) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert first.num_requests / first.span_s == pytest.approx(4.0, rel=0.05)
    assert int(first.max_new_tokens.min()) == 1024
    assert np.std(np.diff(first.arrival_s)) == pytest.approx(0.25, rel=0.1)


def test_a_long_run_tells_the_memory_of_its_own_process() -> None:
    row = speed.million(None, 0, 200)
    assert row["num_finished"] == 200
    assert 20 < row["peak_mb"] < 1_000
