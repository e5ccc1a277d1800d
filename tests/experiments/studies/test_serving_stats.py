"""Means, intervals, ratios and capacities from rows."""

from __future__ import annotations

import math

import pytest
from study_rows import row

from experiments.studies.serving_stats import (
    capacities,
    curve_rows,
    half_width,
    is_stable,
    ratio_of_means,
    ratios_of,
    samples_of,
)


def test_an_interval_is_students() -> None:
    """1, 2, 3: deviation 1, over the root of 3, times t(0.975, 2) = 4.3027."""
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert half_width([1.0]) is None


def test_a_ratio_is_of_means_and_its_interval_of_pairs() -> None:
    """Pairs in the same proportion leave no doubt about the ratio, however much they differ."""
    value, wide = ratio_of_means([0.2, 0.8], [0.1, 0.4])
    assert value == pytest.approx(2.0)
    assert wide == pytest.approx(0.0, abs=1e-12)
    assert ratio_of_means([0.5], [0.0]) == (math.inf, None)


def test_a_ratio_counts_only_where_slob_serves_well() -> None:
    rows = [
        row("slob", 1, 0.9), row("orca", 1, 0.3),
        row("slob", 2, 0.6, p10=0.2), row("orca", 2, 0.01),
        row("slob", 3, 0.4, p10=0.4), row("orca", 3, 0.01),
    ]  # fmt: skip
    found = ratios_of(samples_of(rows), "orca")
    assert [ratio.counts for ratio in found] == [True, False, False]
    assert found[0].value == pytest.approx(3.0)
    assert found[0].as_row()["ratio"] == pytest.approx(3.0)


def test_capacity_lies_where_the_curve_falls_below() -> None:
    """From mean 1 at load 4 to 0.8 at load 16: 0.9 is half-way on the logarithm, load 8; p10 stays good."""
    rows = [row("slob", 4, 1.0), row("slob", 16, 0.8, p10=0.7), row("bad", 4, 0.5), row("good", 4, 1.0)]
    place = ("c", "p", "ragged")
    assert capacities(samples_of(rows), "slob")[place] == pytest.approx(8.0)
    assert capacities(samples_of(rows), "bad")[place] is None
    assert capacities(samples_of(rows), "good")[place] == 4.0


def test_curves_hold_means_over_seeds() -> None:
    [curve] = curve_rows(samples_of([row("slob", 1, 0.8, seed=1), row("slob", 1, 0.6)]))
    assert curve["mean_satisfaction"] == pytest.approx(0.7)
    assert curve["num_seeds"] == 2
    assert curve["satisfaction_half_width"] > 0


def test_sweeps_of_other_roles_are_not_looked_at() -> None:
    rows = [row("slob", 1, 0.8), row("slob", 1, 0.1, role="frontier")]
    [policies] = samples_of(rows).values()
    assert len(policies["slob"]) == 1


def test_stable_is_delivered_and_no_growing_queue() -> None:
    assert is_stable([row("orca", 1, 1.0, num_unfinished=0, queue_drift_s=0.5)])
    assert not is_stable([row("orca", 1, 1.0, num_unfinished=1, queue_drift_s=0.0)])
    assert not is_stable([row("orca", 1, 1.0, num_unfinished=0, queue_drift_s=2.0)])
