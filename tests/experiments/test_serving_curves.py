from __future__ import annotations

import pytest
from serving_rows import point_row, sweep_rows

from experiments.serving_curves import contested_load, curves, distributions, has_column, panels, point_rows, ranking


def test_a_band_is_students_interval_over_seeds() -> None:
    """0.6 and 0.62: mean 0.61, standard error 0.01, t with one degree of freedom 12.706."""
    (panel,) = panels(sweep_rows())
    orca, slob = curves(panel, "mean_satisfaction")
    assert (orca.policy, slob.policy) == ("orca", "slob")
    point = orca.points[1]
    assert (point.load, point.num_seeds) == (1.0, 2)
    assert point.mean == pytest.approx(0.61)
    assert point.low == pytest.approx(0.61 - 0.12706, abs=1e-5)
    assert point.high == pytest.approx(0.61 + 0.12706, abs=1e-5)
    flat = orca.points[0]
    assert (flat.low, flat.mean, flat.high) == (1.0, 1.0, 1.0)


def test_one_seed_has_no_band() -> None:
    (panel,) = panels([point_row("orca", 1.0, 0, 0.5)])
    ((point,),) = [curve.points for curve in curves(panel, "mean_satisfaction")]
    assert (point.mean, point.low, point.high) == (0.5, None, None)


def test_panels_follow_system_workload_and_engine() -> None:
    rows = [
        point_row("orca", 1.0, 0, 0.5),
        point_row("orca", 1.0, 0, 0.5, engine="padded"),
        point_row("orca", 1.0, 0, 0.5, cluster="one", sweep="a"),
        point_row("orca", 1.0, 0, 0.5, cluster="one", sweep="b"),
        {"kind": "curve", "cluster": "two"},
        {"kind": "point", "cluster": "two"},
    ]
    assert [panel.name for panel in panels(rows)] == [
        "two · office_chat · ragged",
        "two · office_chat · padded",
        "one · office_chat · ragged · a",
        "one · office_chat · ragged · b",
    ]
    assert len(point_rows(rows)) == 4


def test_the_contested_load_is_where_policies_differ_and_one_still_serves() -> None:
    """At load 4 they differ more, but the best one has less than 0.5."""
    (panel,) = panels(sweep_rows())
    assert contested_load(panel) == 1.0
    (bad,) = panels([point_row("orca", load, 0, 0.1) for load in (4.0, 2.0)])
    assert contested_load(bad) == 2.0
    assert contested_load(bad, "nothing") is None


def test_distributions_average_percentiles_over_seeds() -> None:
    (panel,) = panels(sweep_rows())
    orca, _ = distributions(panel, "ttft_deciles_s", 1.0)
    assert orca.seconds[0] == pytest.approx((0.1 / 0.6 + 0.1 / 0.62) / 2)
    assert len(orca.seconds) == 21
    broken = panels([point_row("orca", 1.0, 0, 0.5, ttft_deciles_s=[1.0]), point_row("b", 1.0, 0, 0.5)])[0]
    assert [one.policy for one in distributions(broken, "ttft_deciles_s", 1.0)] == ["b"]


def test_ranks_are_averaged_over_points_and_ties_are_shared() -> None:
    """slob wins at two loads of three and ties at one: ranks (1.5 + 1 + 1) / 3 and (1.5 + 2 + 2) / 3."""
    alone = point_row("alone", 9.0, 0, 1.0)
    slob, orca = ranking([*sweep_rows(), alone])
    assert (slob.policy, slob.wins, slob.num_points) == ("slob", 6, 6)
    assert (orca.policy, orca.wins, orca.num_points) == ("orca", 2, 6)
    assert slob.mean_rank == pytest.approx(7 / 6)
    assert orca.mean_rank == pytest.approx(11 / 6)
    assert slob.p10_satisfaction == pytest.approx(slob.mean_satisfaction / 2)


def test_columns_that_no_row_has() -> None:
    assert has_column(sweep_rows(), "goodput")
    assert not has_column(sweep_rows(), "padding_waste")
    (panel,) = panels(sweep_rows())
    assert curves(panel, "padding_waste") == ()


def test_parameters_tell_policies_of_one_name_apart() -> None:
    rows = [point_row("slob", 1.0, 0, mean, params=params) for mean, params in ((0.5, '{"beta":0}'), (0.7, "{}"))]
    (panel,) = panels(rows)
    assert [(curve.policy, curve.points[0].mean) for curve in curves(panel, "mean_satisfaction")] == [
        ('slob {"beta":0}', 0.5),
        ("slob {}", 0.7),
    ]
    assert [rank.policy for rank in ranking(rows)] == ["slob {}", 'slob {"beta":0}']
