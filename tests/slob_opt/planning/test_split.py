from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slob_builders import FREE_LINK, GB, MS, by_bandwidth, heavy_first_layers, tiny_tables

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.cost.table import CostTable
from slob_opt.errors import InputError
from slob_opt.planning import split
from slob_opt.planning.evaluate import report_pipeline
from slob_opt.planning.split import best_split, pipeline_of


def _by_hand(
    table: CostTable, row: int, route: tuple[int, ...], k: int, sequences: int
) -> tuple[float, float, float] | None:
    """Best interval over all compositions, hops and occupancy; ``None`` when nothing fits."""
    found = []
    for counts in itertools.product(range(1, table.num_layers + 1), repeat=len(route)):
        if sum(counts) != table.num_layers:
            continue
        b = table.batch_sizes[row]
        report = report_pipeline(table, pipeline_of(table, route, counts, k, b), row)
        first = 0
        fits = True
        for d, n in zip(route, counts, strict=True):
            held = sum(table.stage_memory(row, d, first, first + n, sequences).values())
            fits &= held <= int(table.capacity_bytes[table.device_class[d]])
            first += n
        if fits:
            found.append((report.interval_s, report.hops_s + report.return_s, report.occupancy_s))
    return min(found) if found else None


def _hops(table: CostTable, row: int, route: tuple[int, ...]) -> tuple[float, float]:
    """Hops with return, and occupancy, of a route."""
    counts = (table.num_layers - len(route) + 1, *(1 for _ in route[1:]))
    report = report_pipeline(table, pipeline_of(table, route, counts, 1, 1), row)
    return report.hops_s + report.return_s, report.occupancy_s


@settings(max_examples=120, deadline=None)
@given(tiny_tables(max_devices=4, max_layers=7), st.sampled_from([1, 2, 3, 5]), st.integers(0, 2), st.data())
def test_equals_the_best_of_all_splits(table: CostTable, k: int, row: int, data: st.DataObject) -> None:
    route = tuple(data.draw(st.permutations(range(table.num_devices))))[: data.draw(st.integers(1, table.num_devices))]
    if len(route) > table.num_layers:
        assert best_split(table, row, route, k, k, 0.0, 0.0) is None
        return
    sequences = k * table.batch_sizes[row]
    hops_s, occupancy_s = _hops(table, row, route)
    expected, found = (
        _by_hand(table, row, route, k, sequences),
        best_split(table, row, route, k, sequences, hops_s, occupancy_s),
    )
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert found[0] == expected[0]  # to the last bit
    report = report_pipeline(table, pipeline_of(table, route, found[1], k, table.batch_sizes[row]), row)
    assert report.interval_s == found[0]
    # The limit is kept: at the optimum it changes nothing, below it nothing is left.
    assert best_split(table, row, route, k, sequences, hops_s, occupancy_s, upper=expected[0]) == found
    assert best_split(table, row, route, k, sequences, hops_s, occupancy_s, upper=expected[0] * (1 - 1e-9)) is None


@settings(max_examples=60, deadline=None)
@given(tiny_tables(max_devices=4, max_layers=7), st.sampled_from([1, 2, 8]))
def test_filling_and_cutting_agree_where_both_apply(table: CostTable, k: int) -> None:
    route = tuple(range(min(table.num_devices, table.num_layers)))
    if not table.has_identical_layers:
        return
    filled, cut = (make(table, 1, route, k) for make in (split._filling_probe, split._cutting_probe))
    assert (filled is None) == (cut is None)
    if filled is not None and cut is not None:
        assert split._search(filled, k, 5, 0, None)[0] == split._search(cut, k, 5, 0, None)[0]  # type: ignore[index]


def test_occupancy_that_is_no_whole_tick_is_kept_as_it_is() -> None:
    # A busy network card sets the interval: 3 * 0.7 s, though the stages need 0.5 s in all.
    table = direct_table([DirectClass("a", 2, 10, 0.125)], 4, layer_bytes=1)
    found = best_split(table, 0, (0, 1), 3, 3, 0.0, 0.7)
    assert found is not None
    assert found[0] == 3 * 0.7
    assert best_split(table, 0, (0, 1), 3, 3, 0.0, 0.7, upper=3 * 0.7) == found
    assert best_split(table, 0, (0, 1), 3, 3, 0.0, 0.7, upper=2.0) is None


def test_ends_weigh_on_the_first_and_last_stage() -> None:
    # 32 layers of 1 ms, embedding 0.5 ms, head 1.2 ms, four cards, K = 4: the longest stage decides. 9 ms is the least,
    # as 8.5 ms would allow 8 + 8 + 8 + 7 = 31 layers; K * 9 = 36 ms. So the ends get fewer layers, as 8, 9, 8, 7.
    table = direct_table(
        [DirectClass("card", 4, 16 * GB, 1 * MS, embed_s=0.5 * MS, head_s=1.2 * MS)],
        32,
        layer_bytes=436_000_000,
        kv_bytes=0,
        embed_bytes=1_050_000_000,
        head_bytes=1_550_000_000,
        bytes_per_s=FREE_LINK,
    )
    found = best_split(table, 0, (0, 1, 2, 3), 4, 4, 0.0, 0.0)
    assert found is not None
    assert found[0] == pytest.approx(36 * MS, rel=1e-5)
    assert found[1][0] <= 8
    assert found[1][3] <= 7
    # The memory report shows the parts by name: head with logits 1.55 GB on the last card, embedding on the first.
    stages = report_pipeline(table, pipeline_of(table, (0, 1, 2, 3), found[1], 4), 0).stages
    assert dict(stages[0].memory)["embedding"] == 1_050_000_000
    assert dict(stages[3].memory)["head"] == 1_550_000_000
    assert dict(stages[1].memory)["embedding"] == dict(stages[1].memory)["head"] == 0


def test_memory_of_each_card_limits_its_own_share() -> None:
    # 60 layers of 1.1 + 0.1 GB on 30 and 50 GB: at most 25 and 41. The longer stage counts twice: 25 and 35.
    table = direct_table(
        [DirectClass("small", 1, 30 * GB, 1 * MS), DirectClass("large", 1, 50 * GB, 1 * MS)],
        60,
        layer_bytes=1_100_000_000,
        kv_bytes=50_000_000,
        bytes_per_s=FREE_LINK,
    )
    assert best_split(table, 0, (0, 1), 2, 2, 0.0, 0.0) == (pytest.approx(70 * MS, rel=1e-5), (25, 35))


def test_unequal_layers_are_split_by_what_they_weigh() -> None:
    instance = heavy_first_layers().instance
    found = best_split(instance.table, 0, (0, 1), 2, 2, 0.0, 0.0)
    assert found is not None
    assert found[1] in ((27, 53), (28, 52))  # 20.8 and 21.2 GB, either way round
    # Without times that tell layers apart, memory alone allows 20/60 to 35/45; the most even count is 35/45.
    sizes = [900_000_000] * 20 + [400_000_000] * 60
    plain = direct_table([DirectClass("card", 2, 24 * GB, 1 * MS)], 80, layer_bytes=sizes, bytes_per_s=FREE_LINK)
    assert best_split(plain, 0, (0, 1), 2, 2, 0.0, 0.0) == (pytest.approx(90 * MS, rel=1e-5), (35, 45))


def test_balance_is_over_time_not_over_memory() -> None:
    table = by_bandwidth().instance.table
    found = best_split(table, 1, (0, 1), 4, 4, 0.0, 0.0)
    assert found is not None
    assert found[1] == (39, 25)


def test_wrong_use_is_told() -> None:
    table = direct_table([DirectClass("a", 2, 10, 0.125)], 4, layer_bytes=1)
    with pytest.raises(InputError, match="at least one device"):
        best_split(table, 0, (), 1, 1, 0.0, 0.0)
    with pytest.raises(InputError, match="whole number of ticks"):
        best_split(table, 0, (0, 1), 1, 1, 1e-12, 0.0)
    with pytest.raises(InputError, match="sum to 3, the model has 4"):
        pipeline_of(table, (0, 1), (1, 2))
    with pytest.raises(InputError, match="1 layer counts for 2 devices"):
        pipeline_of(table, (0, 1), (4,))
