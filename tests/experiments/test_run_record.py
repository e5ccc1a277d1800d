"""Records: closed metric names, long parameters, thinned series, rows in one table."""

from __future__ import annotations

import pytest

from experiments.run_record import (
    MAX_METRICS,
    MAX_PARAM_CHARS,
    METRIC_NAMES,
    RowTable,
    RunRecord,
    Series,
    flatten,
)
from slob_opt.errors import InputError


def test_metric_names_are_a_closed_list() -> None:
    """Case M06: 64 devices with 40 figures each would make 2,560 names; refused as metrics, they fit a table."""
    with pytest.raises(InputError, match="closed list"):
        RunRecord("r", metrics=(("device_7.busy", 1.0),))
    assert len(METRIC_NAMES) < 100
    rows = tuple((device, figure, 0.5) for device in range(64) for figure in range(40))
    text = RowTable("devices.csv", ("device", "figure", "value"), rows).as_csv()
    assert len(text.splitlines()) == 1 + 64 * 40


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_metrics_are_finite(value: float) -> None:
    with pytest.raises(InputError, match="finite"):
        RunRecord("r", metrics=(("objective", value),))
    with pytest.raises(InputError, match="finite"):
        RunRecord("r", series=(Series("history.bound", ((0.0, value),)),))


def test_a_metric_is_given_once() -> None:
    with pytest.raises(InputError, match="twice"):
        RunRecord("r", metrics=(("objective", 1.0), ("objective", 2.0)))


def test_a_long_parameter_becomes_a_hash_and_a_text() -> None:
    """Cases M12 and M13."""
    long = "x" * 20_000
    params, texts = RunRecord("r", params=(("ok", "1"), ("plan", long))).short_params()
    assert params[0] == ("ok", "1")
    assert params[1][0] == "plan"
    assert params[1][1].startswith("sha256:")
    assert len(params[1][1]) <= MAX_PARAM_CHARS
    assert texts == (("params/plan.txt", long),)


def test_series_are_thinned_to_the_limit_and_keep_their_ends() -> None:
    points = tuple((float(i), float(-i)) for i in range(5000))
    record = RunRecord(
        "r",
        metrics=(("objective", 1.0), ("solve_s", 2.0)),
        series=(Series("history.incumbent", points), Series("history.bound", points)),
    )
    thin = record.thin_series()
    assert sum(len(s.points) for s in thin) + 2 <= MAX_METRICS
    assert all(s.points[0] == points[0] and s.points[-1] == points[-1] for s in thin)


def test_flatten_names_every_leaf() -> None:
    flat = dict(flatten({"a": {"b": None, "c": [1, 2]}, "d": [{"e": 1}, {"e": 2}], "f": "text", "g": True}))
    assert flat == {"a.b": "none", "a.c": "1,2", "d.0.e": "1", "d.1.e": "2", "f": "text", "g": "True"}
