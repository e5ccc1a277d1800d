from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.cost.table import TICK_S, quantise, to_ticks
from slob_opt.errors import InputError


def small_table():
    """Two fast and one slow device, five layers, batch grid 1, 2, 4."""
    fast = DirectClass("fast", 2, 1000, 0.25, layer_per_sequence_s=0.125, fixed_s=1.0, embed_s=0.5, head_s=2.0)
    slow = DirectClass("slow", 1, 5000, [1.0, 2.0, 3.0, 4.0, 5.0])
    return direct_table(
        [fast, slow],
        5,
        layer_bytes=[10, 20, 30, 40, 50],
        kv_bytes=3,
        embed_bytes=7,
        head_bytes=11,
        tied_saving_bytes=5,
        workspace_bytes=100,
        batch_sizes=(1, 2, 4),
        hop_bytes_per_token=1000,
        tokens_per_sequence=2.5,
        latency_s=0.25,
        bytes_per_s=4000.0,
    )


@given(st.floats(0, 1e5))
def test_quantised_times_are_whole_ticks_within_half_a_tick(seconds):
    rounded = float(quantise(seconds))
    assert abs(rounded - seconds) <= TICK_S / 2
    assert to_ticks(rounded) * TICK_S == rounded


@given(st.lists(st.floats(0, 100), min_size=2, max_size=60), st.randoms(use_true_random=False))
def test_sums_of_ticks_do_not_depend_on_their_order(values, random):
    ticks = [float(v) for v in quantise(np.array(values))]
    total = sum(ticks)
    random.shuffle(ticks)
    assert sum(ticks) == total


def test_time_between_ticks_is_no_table_time():
    with pytest.raises(InputError, match="whole number of ticks"):
        to_ticks(TICK_S / 3)


def test_stage_time_by_hand():
    """Fast, batch 4: layer 0.25 + 3 * 0.125 = 0.625; layers 0-2 with embedding 1 + 1.25 + 0.5, all with head + 2."""
    table = small_table()
    row = table.row_of_batch(4)
    assert table.stage_s(row, 0, 0, 2) == 1 + 2 * 0.625 + 0.5
    assert table.stage_s(row, 1, 1, 3) == 1 + 2 * 0.625
    assert table.stage_s(row, 1, 0, 5) == 1 + 5 * 0.625 + 0.5 + 2
    assert table.stage_s(0, 2, 1, 4) == 2 + 3 + 4


def test_stage_memory_by_hand():
    """Two sequences on layers 1 and 2: 100 + 50 + 2 * 2 * 3; the whole model saves the tied five bytes."""
    table = small_table()
    assert sum(table.stage_memory(0, 0, 1, 3, 2).values()) == 100 + 50 + 12
    whole = table.stage_memory(0, 0, 0, 5, 1)
    assert whole == {"workspace": 100, "weights": 150, "kv": 15, "embedding": 7, "head": 6}
    assert table.stage_memory(0, 0, 4, 5, 1)["head"] == 11


def test_hops_by_hand():
    """Batch 4 carries 10 tokens of 1,000 B at 4,000 B/s: 2.5 s busy, 2.75 s with latency; back go 16 B."""
    table = small_table()
    row = table.row_of_batch(4)
    assert (table.hop_bytes[row], table.return_bytes[row]) == (10000, 16)
    assert (table.occupancy_s[row, 0], table.hop_s[row, 0]) == (2.5, 2.75)
    assert table.return_s[row, 0] == pytest.approx(0.25 + 16 / 4000, abs=TICK_S)


def test_pair_links_become_classes():
    links = [[(1.0, 9.0), (2000.0, 0.5)], [(1000.0, 0.5), (1.0, 9.0)]]
    table = direct_table([DirectClass("a", 2, 10, 1.0)], 2, layer_bytes=1, hop_bytes_per_token=1000, pair_links=links)
    assert table.link_class.tolist() == [[-1, 1], [0, -1]]
    assert table.hop_s[0].tolist() == [1.5, 1.0]
    assert not table.has_uniform_links


def test_shape_predicates():
    table = small_table()
    assert table.has_uniform_links
    assert table.has_exclusive_devices
    assert not table.has_identical_layers
    assert direct_table([DirectClass("a", 2, 10, 1.0)], 3, layer_bytes=1).has_identical_layers
    assert not replace(table, device_cards=((0,), (0, 1), (2,))).has_exclusive_devices


def test_arrays_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        small_table().layer_s[0, 0, 0] = 1.0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"embed_bytes": np.zeros(3, np.int64)}, "embed_bytes"),
        ({"batch_sizes": (1, 2)}, "batch_sizes"),
        ({"class_names": ("a",)}, "class_names"),
        ({"fixed_s": np.full((4, 2), -1.0)}, "negative"),
        ({"link_class": np.full_like(small_table().link_class, -1)}, "which share no card"),
        ({"fixed_s": np.full((4, 2), np.nan)}, "non-finite"),
        ({"fixed_s": np.full((4, 2), TICK_S / 3)}, "quantise"),
    ],
)
def test_inconsistent_tables_are_refused(changes, word):
    with pytest.raises(InputError, match=word):
        replace(small_table(), **changes)


def test_batch_outside_the_grid_is_refused():
    table = small_table()
    assert [table.row_of_batch(b) for b in (1, 2, 4)] == [1, 2, 3]
    with pytest.raises(InputError, match="batch size 3"):
        table.row_of_batch(3)


def test_wrong_number_of_layers_is_refused():
    with pytest.raises(InputError, match="4 entries, expected 3"):
        direct_table([DirectClass("a", 1, 10, 1.0)], 3, layer_bytes=[1, 2, 3, 4])


def test_fingerprint_sees_every_field():
    table = small_table()
    assert table.fingerprint == small_table().fingerprint
    assert replace(table, kv_mode="tight").fingerprint != table.fingerprint
    assert replace(table, head_bytes=table.head_bytes + 1).fingerprint != table.fingerprint
    # What texts alone are made from changes no plan: files written before stay good.
    assert replace(table, weight_bits=8.0).fingerprint == table.fingerprint
    assert replace(table, logits_bytes=np.zeros(4, np.int64)).fingerprint == table.fingerprint


def test_narrower_weights_by_hand():
    """Halved and rounded up; ends only where it is known what of the head is no weights: 11 = 4 + 7, 7 becomes 4."""
    table = small_table()
    lighter = table.with_weight_bits(8)
    assert lighter.weight_bytes.tolist() == [[5, 10, 15, 20, 25]] * 2
    assert (lighter.embed_bytes[0], lighter.head_bytes[0, 0], lighter.tied_saving_bytes[0]) == (7, 11, 5)
    assert lighter.weight_bits == 8
    ends = replace(table, logits_bytes=np.full(4, 4, np.int64)).with_weight_bits(8)
    assert (ends.embed_bytes[0], ends.head_bytes[0, 0], ends.tied_saving_bytes[0]) == (4, 4 + 4, 3)
    assert np.array_equal(lighter.layer_s, table.layer_s)
    assert replace(table, weight_bits=None).with_weight_bits(8) is None


@pytest.mark.parametrize(
    ("changes", "word"), [({"weight_bits": 0.0}, "weight_bits"), ({"logits_bytes": np.zeros(1)}, "logits_bytes")]
)
def test_senseless_facts_for_people_are_refused(changes, word):
    with pytest.raises(InputError, match=word):
        replace(small_table(), **changes)
