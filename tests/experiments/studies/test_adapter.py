"""The adapter study on short days, and its claim from rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.ladder_days import Day
from experiments.run_record import CLAIM_METRICS
from experiments.studies.adapter import AdapterCase, adapter_cases, study_of
from experiments.studies.adapter_claims import adapter_claims, adapter_figures, by_case, dominating
from experiments.study_contract import StudyOptions


def test_a_short_day_gives_all_rows_and_resumes(tmp_path: Path) -> None:
    case = AdapterCase("tiny", "lab-3", "llama-3.1-8b", Day("office_chat", (0.5, 3.0), 300.0))
    told: list[str] = []
    options = StudyOptions(tmp_path, True, 0, 1, told.append)
    summary = study_of([case], [0], options)
    json.dumps(summary.as_json(), allow_nan=False)
    assert {one.id for one in summary.claims} == {name for name in CLAIM_METRICS if name.startswith("adapter.")}
    levels = [row for row in summary.rows if row["kind"] == "level"]
    days = [row for row in summary.rows if row["kind"] == "day"]
    assert [row["serves"] for row in days] == [*(f"level-{row['level']}" for row in levels), "adapter"]
    assert len({row["num_requests"] for row in days}) == 1
    assert study_of([case], [0], options).rows == summary.rows
    assert "1 of 1 instances taken over from an earlier run" in told


def test_the_full_study_is_longer_than_the_quick_one() -> None:
    full, quick = adapter_cases(is_quick=False), adapter_cases(is_quick=True)
    assert len(full[0].day.offered) * full[0].day.hour_s == 8 * 3600
    assert len(quick[0].day.offered) * quick[0].day.hour_s < 2 * 3600


def day(serves: str, loss: float, card_s: float, seed: int = 0, case: str = "c") -> dict:
    return {"kind": "day", "case": case, "seed": seed, "serves": serves, "loss": loss, "card_s": card_s}


def test_the_gain_is_against_the_best_level_within_the_card_seconds() -> None:
    rows = [
        day("level-0", 0.4, 10.0), day("level-1", 0.2, 20.0), day("level-2", 0.01, 70.0), day("adapter", 0.05, 25.0)
    ]  # fmt: skip
    (claim,) = adapter_claims(rows)
    # Level 2 loses less with more cards: no yardstick. 1 - 0.05 / 0.2.
    assert claim.value == pytest.approx(75.0)
    assert claim.holds is True
    figures = {row["name"]: row for row in adapter_figures(rows)}
    assert figures["c.gain"]["note"] == "against level-1"
    assert figures["c.card_seconds_saved"]["value"] == pytest.approx(100 * (1 - 25 / 70))


def test_seeds_are_averaged_and_the_worst_case_counts() -> None:
    rows = [
        day("level-0", 0.2, 10.0), day("level-0", 0.6, 10.0, 1), day("adapter", 0.1, 11.0),
        day("adapter", 0.1, 13.0, 1),
        day("level-0", 0.2, 10.0, case="d"), day("adapter", 0.18, 12.0, case="d"),
    ]  # fmt: skip
    assert by_case(rows)["c"][0].card_s == 12.0
    assert adapter_claims(rows)[0].value == pytest.approx(10.0)


def test_a_level_that_dominates_fails_the_claim() -> None:
    rows = [day("level-0", 0.05, 20.0), day("adapter", 0.05, 25.0)]
    assert dominating(by_case(rows)["c"]) == ["level-0"]
    (claim,) = adapter_claims(rows)
    assert claim.value == pytest.approx(0.0)
    assert claim.holds is False


def test_without_a_yardstick_nothing_is_claimed() -> None:
    assert adapter_claims([day("level-0", 0.2, 30.0), day("adapter", 0.1, 25.0)])[0].value is None
    assert adapter_claims([])[0].holds is None
