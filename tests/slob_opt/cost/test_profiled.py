"""Measured profiles in the cost model: each way to a stage's time gives the same sum."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_profiles import llama_in_float32, measured_card, measured_cluster, profile_for, profiles, small_model

from slob_opt.cost import profiled
from slob_opt.cost.batch import BatchShape
from slob_opt.cost.build import CostOptions, build_table
from slob_opt.cost.roofline import CardGroup, layer_s, stage_s
from slob_opt.cost.stage_clock import PS_PER_S, StageClock, work_of_rows
from slob_opt.errors import InputError
from slob_opt.problem.catalogue.gpus import gpu_device
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Link
from slob_opt.problem.measured import Coefficient, MeasuredProfile, ModelFingerprint, Slope
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.traffic import TrafficProfile

MODEL = small_model(windows=(None, 50))
shapes = st.builds(
    BatchShape.of,
    st.lists(st.integers(1, 3000), max_size=12),
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 900)), max_size=3),
    is_padded=st.booleans(),
).filter(lambda shape: shape.num_sequences)


members = st.tuples(
    st.lists(st.integers(1, 3000), max_size=12),
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 900)), max_size=3),
).filter(lambda pair: bool(pair[0] or pair[1]))


def card(profile: MeasuredProfile) -> CardGroup:
    return CardGroup(measured_card("box/0", profile))


def test_a_stage_by_hand() -> None:
    """Layers [0, 2) of 8, two decodes over 100 and 20 tokens (window 50 in layer 1), a chunk of 40 after 10.

    step 100, embedding 7 + 42 * 0.5 = 28; per layer 10 + 32 * 20 + 10 * 10 + 2 * 3 + 5 = 761; KV 0.02 * (120 + 70);
    pairs 0.005 * (40 * 10 + 820 + the same within 50 keys): queries at 10..49 see 11..50 keys, all within 50.
    """
    shape = BatchShape.ragged((100, 20), ((10, 40),))
    expected = 100 + 28 + 2 * 761 + 0.02 * 190 + 0.005 * 2 * 1220
    assert stage_s(card(profile_for(MODEL)), MODEL, 0, 2, shape) * 1e6 == pytest.approx(expected, rel=1e-12)


@given(profiles(MODEL), members, st.booleans(), st.integers(0, 7), st.integers(1, 8))
@settings(max_examples=150, deadline=None)
def test_clock_direct_sum_and_fitted_row_agree(profile, member, is_padded, first, count):
    """Ragged and padded, windows and full attention, any slice: roofline, clock and a fit's row are one number."""
    end = min(MODEL.num_layers, first + count)
    shape = BatchShape.of(*member, is_padded=is_padded)
    direct = stage_s(card(profile), MODEL, first, end, shape)
    row = profiled.parts(MODEL, first, end, shape, profile.knots, profile.head_knots)
    assert direct == pytest.approx(float(row @ profiled.coefficients(profile)), rel=1e-9, abs=1e-15)
    clock = StageClock(card(profile), MODEL, first, end)
    work = clock.work_of(shape)
    rounding_ps = sum(work.kv_tokens) + work.decodes + work.chunks + len(work.pairs) + 4
    assert abs(clock.ps(work) - direct * PS_PER_S) <= rounding_ps + 1e-9 * direct * PS_PER_S


@given(profiles(MODEL), members, st.booleans())
@settings(max_examples=50, deadline=None)
def test_rows_of_the_engine_give_the_same_time(profile, member, is_padded):
    clock = StageClock(card(profile), MODEL, 0, MODEL.num_layers)
    contexts, chunks = member
    cached = np.array([c - 1 for c in contexts] + [c for c, _ in chunks], np.int64)
    tokens = np.array([1] * len(contexts) + [n for _, n in chunks], np.int64)
    is_decode = np.array([True] * len(contexts) + [False] * len(chunks))
    work, _ = work_of_rows(cached, tokens, is_decode, clock.windows, is_padded=is_padded)
    shape = BatchShape.of(contexts, chunks, is_padded=is_padded)
    assert clock.ps(work) == clock.ps(clock.work_of(shape))


@given(profiles(MODEL), members, st.integers(0, 400), st.integers(0, 300), st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_more_work_never_takes_less(profile, member, context, cached, chunk):
    """One more token of context, one more row of each kind, one more token of a chunk, one more layer."""
    contexts, chunks = member
    clock, wider = StageClock(card(profile), MODEL, 1, 6), StageClock(card(profile), MODEL, 1, 7)

    def ps(decodes, prefills, of=clock) -> int:
        return of.ps(of.work_of(BatchShape.ragged(decodes, prefills)))

    base = ps(contexts, chunks)
    assert ps([*contexts, context + 1], chunks) >= base
    assert ps(contexts, [*chunks, (cached, chunk)]) >= base
    assert ps([c + 1 for c in contexts], chunks) >= base
    assert ps(contexts, [(c + 1, n) for c, n in chunks]) >= base
    assert ps(contexts, [(c, n + 1) for c, n in chunks]) >= base
    assert ps(contexts, chunks, wider) >= base - len(contexts) - 4


@given(profiles(MODEL), st.integers(1, 3000))
@settings(max_examples=60, deadline=None)
def test_dense_part_is_monotone_across_the_clocks_grid(profile, tokens):
    clock = StageClock(card(profile), MODEL, 0, 8)
    assert clock.dense_ps(tokens) <= clock.dense_ps(tokens + 1)


@given(profiles(MODEL), members, st.floats(1.0, 10.0))
@settings(max_examples=60, deadline=None)
def test_an_emulated_device_takes_its_slowdown(profile, member, factor):
    shape = BatchShape.ragged(*member)
    for first, end in ((0, 8), (3, 5)):
        once = stage_s(card(profile), MODEL, first, end, shape)
        assert stage_s(card(profile.scaled(factor)), MODEL, first, end, shape) == pytest.approx(factor * once, rel=1e-9)
    assert profile.scaled(2).scaled(3) == profile.scaled(6)


@given(st.integers(0, 5000), st.lists(st.integers(1, 3000), unique=True, max_size=5).map(sorted))
def test_slopes_share_the_tokens(tokens, knots):
    inside = profiled.by_slope((0, *knots), tokens)
    assert sum(inside) == tokens
    assert min(inside) >= 0


def test_other_devices_are_as_they_were() -> None:
    """A card without a profile doesn't meet the new code: same numbers with and without a measured neighbour."""
    model = small_model()
    plain = Cluster("c", (Node("n", (gpu_device("l4", "n/0"),)),), Link(1e9, 1e-4), Link(1e10, 1e-5))
    both = replace(plain, nodes=(Node("n", (gpu_device("l4", "n/0"), measured_card("n/1", profile_for(model)))),))
    alone, mixed = (build_table(cluster, model, TrafficProfile()) for cluster in (plain, both))
    for item in ("fixed_s", "layer_s", "embed_s", "head_s", "workspace_bytes", "capacity_bytes"):
        assert np.array_equal(
            getattr(mixed, item)[..., :1] if item != "layer_s" else mixed.layer_s[:, :1], getattr(alone, item)
        )


def test_table_holds_the_profiles_times_and_memory() -> None:
    model = small_model()
    cluster = measured_cluster(model, (1.0, 3.0, 3.0))
    table = build_table(cluster, model, TrafficProfile(), CostOptions(batch_grid=(1, 4)))
    assert table.device_class.tolist() == [0, 1, 1]
    assert table.fixed_s[0].tolist() == pytest.approx([100e-6, 300e-6], abs=1e-9)
    assert table.head_s[2].tolist() == pytest.approx([(200 + 5 * 50) * 1e-6, 3 * (200 + 5 * 50) * 1e-6], rel=0.3)
    assert np.all(table.workspace_bytes < 10 * 2**20)  # not the 1.25 GiB of a GPU's framework
    framework = replace(profile_for(model), framework_bytes=2**28)
    one = replace(cluster, nodes=(Node("box", (measured_card("box/0", framework),)),))
    more = build_table(one, model, TrafficProfile(), CostOptions(batch_grid=(1, 4))).workspace_bytes
    assert np.all(more - table.workspace_bytes[:, :1] == 2**28)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (small_model(9), "layers 9, measured was 8"),
        (replace(small_model(), hidden_size=128), "hidden size 128, measured was 64"),
        (replace(small_model(), vocab_size=300), "vocabulary 300, measured was 256"),
        (replace(small_model(), weight_bits=16), r"16-bit weights, measured were 32-bit ones \(float32\)"),
        (replace(small_model(), kv_bits=8), r"8-bit KV, measured were 32-bit KV \(float32\)"),
        (
            replace(small_model(), layers=(replace(small_model().layers[0], num_heads=2),) * 8),
            "num_heads 2, measured was 4",
        ),
    ],
)  # fmt: skip
def test_a_profile_of_another_model_is_refused_by_name(changed: ModelSpec, message: str) -> None:
    group = card(profile_for(small_model()))
    changed = replace(changed, name="other")
    with pytest.raises(InputError, match=rf"of Some CPU was measured with small, model other has {message}"):
        StageClock(group, changed, 0, 2).dense_ps(1)
    with pytest.raises(InputError, match=message):
        layer_s(group, changed, changed.layers[0], BatchShape.ragged((1,)))
    with pytest.raises(InputError, match=message):
        build_table(measured_cluster(small_model(), (1.0,)), changed, TrafficProfile())


def test_a_model_of_another_name_and_the_same_numbers_is_the_same() -> None:
    renamed = replace(small_model(), name="copy of small")
    assert StageClock(card(profile_for(small_model())), renamed, 0, 8).dense_ps(1) > 0


def test_tensor_parallel_groups_of_measured_cards_are_refused() -> None:
    with pytest.raises(InputError, match="group of 2 cards with measured times"):
        CardGroup(measured_card("a", profile_for(small_model())), 2, Link(1e9, 1e-5))


def test_mixed_layers_have_no_fingerprint() -> None:
    model = small_model()
    layers = (*model.layers[:-1], replace(model.layers[-1], mlp_params=1000))
    with pytest.raises(InputError, match="layer 7 of small has mlp_params 1000"):
        ModelFingerprint.of(replace(model, layers=layers), "float32")
    assert ModelFingerprint.of(llama_in_float32(), "float32").difference(llama_in_float32()) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_tokens": ()}, "slope from the first or second one"),
        ({"layer_tokens": (Slope(2, 1.0),)}, "slope from the first or second one"),
        ({"layer_tokens": (Slope(0, 1.0), Slope(4, 1.0), Slope(4, 1.0))}, "ascending"),
        ({"clock": "sun"}, "cpu, wall, cuda"),
        ({"slowdown": 0.0}, "slowdown is 0.0"),
        ({"wall_ratio": float("nan")}, "wall_ratio is nan"),
    ],
)
def test_wrong_profiles_are_refused(change, message) -> None:
    with pytest.raises(InputError, match=message):
        replace(profile_for(small_model()), **change)


def test_negative_times_are_refused() -> None:
    with pytest.raises(InputError, match="at least zero"):
        Coefficient(-1e-9)
    with pytest.raises(InputError, match="at least zero"):
        Slope(0, -1e-9)


@given(profiles())
@settings(max_examples=20, deadline=None)
def test_profiles_travel_to_other_processes(profile) -> None:
    assert pickle.loads(pickle.dumps(profile)) == profile
    assert hash(profile) == hash(replace(profile))


def test_every_coefficient_is_a_part_of_the_work() -> None:
    """A coefficient that is added to the profile must be added to the sum as well."""
    names = {item.name for item in fields(MeasuredProfile) if item.type == "Coefficient"}
    assert names == set(profiled.PART_NAMES)
