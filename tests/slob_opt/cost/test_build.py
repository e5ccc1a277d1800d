from dataclasses import replace

import numpy as np
import pytest
from cost_facts import GIB, a100, l4, llama_2_7b, llama_2_70b, nodes_of_one, one_node
from hypothesis import given, settings
from hypothesis import strategies as st

from slob_opt.cost import memory, roofline
from slob_opt.cost.build import CostOptions, build_table, mean_context_tokens, planning_shapes
from slob_opt.cost.groups import form_groups
from slob_opt.cost.memory import token_capacity
from slob_opt.cost.table import TICK_S, to_ticks
from slob_opt.errors import InputError
from slob_opt.problem import catalogue
from slob_opt.problem.architecture import Architecture, ExpertShape, build_model
from slob_opt.problem.traffic import TrafficProfile

TRAFFIC = TrafficProfile(750, 240)


def windowed_experts():
    """Four layers with experts, every other one with a window; tied head; 8 KV heads."""
    return build_model(
        Architecture(
            "mix",
            1024,
            4,
            16,
            8,
            64,
            2048,
            32000,
            has_tied_embeddings=True,
            window_pattern=(512, None),
            experts=ExpertShape(8, 2, 1024),
        )
    )


@pytest.mark.parametrize("kv_mode", ["safe", "tight"])
@pytest.mark.parametrize("model", [llama_2_70b(), windowed_experts()], ids=lambda m: m.name)
def test_every_stage_of_the_table_is_the_formula(model, kv_mode):
    """Time to a tick a part (layers, embedding, head, step), bytes exactly, for each row, class and a few ranges."""
    cluster = one_node(*(a100(f"g{i}") for i in range(4)), l4("l"), tp_degrees=(1, 2, 4))
    options = CostOptions(batch_grid=(1, 5, 64), kv_mode=kv_mode)
    table = build_table(cluster, model, TRAFFIC, options)
    groups = form_groups(cluster, model)
    end = model.num_layers
    for row, shape in enumerate(planning_shapes(TRAFFIC, options)):
        for device in range(table.num_devices):
            group = groups.classes[groups.class_of[device]]
            for first, last in ((0, end), (0, 1), (1, end - 1), (end - 1, end)):
                time = table.stage_s(row, device, first, last)
                formula = roofline.stage_s(group, model, first, last, shape)
                assert abs(time - formula) <= (last - first + 3) * TICK_S / 2
                to_ticks(time)  # raises unless a whole number of ticks
                parts = table.stage_memory(row, device, first, last, 7)
                layers = model.layers[first:last]
                assert parts["weights"] == sum(memory.weight_bytes(model, layer, group.degree) for layer in layers)
                assert parts["kv"] == 7 * sum(
                    memory.kv_sequence_bytes(model, layer, 990, group.degree, kv_mode=kv_mode) for layer in layers
                )
                assert parts["workspace"] == options.framework_bytes + memory.activation_bytes(
                    model, shape.computed_tokens, group.degree
                )
                assert parts["embedding"] == (memory.embedding_bytes(model, group.degree) if first == 0 else 0)
                head = memory.head_weight_bytes(model, group.degree) + memory.logits_bytes(model, shape.num_sequences)
                saving = memory.tied_saving_bytes(model, group.degree) if first == 0 else 0
                assert parts["head"] == (head - saving if last == end else 0)


def test_rows_are_one_decode_token_then_the_grid_with_its_prefill_share():
    """750 / 240 prompt tokens a decode token: 3.125; context 750 + 240 / 2."""
    shapes = planning_shapes(TRAFFIC, CostOptions(batch_grid=(1, 4, 48)))
    assert [s.decode_sequences for s in shapes] == [1, 1, 4, 48]
    assert [s.prefill_tokens for s in shapes] == [0, 3, 13, 150]
    assert {c for s in shapes for c in s.decode_contexts} == {870}
    table = build_table(nodes_of_one(l4()), llama_2_7b(), TRAFFIC, CostOptions(batch_grid=(1, 4, 48)))
    assert table.batch_sizes == (1, 1, 4, 48)
    assert table.hop_bytes.tolist() == [8192 * n for n in (1, 4, 17, 198)]
    assert table.return_bytes.tolist() == [4, 4, 16, 192]


def test_time_is_for_the_mean_context_and_memory_for_all_of_it():
    assert mean_context_tokens(TRAFFIC) == 870
    assert mean_context_tokens(TrafficProfile(750, 240, context_tokens=800)) == 800
    assert mean_context_tokens(TrafficProfile(10, 1)) == 11
    short, long = (
        build_table(nodes_of_one(l4()), llama_2_7b(), replace(TRAFFIC, context_tokens=c)) for c in (990, 4096)
    )
    assert np.array_equal(short.layer_s, long.layer_s)
    assert short.kv_bytes[0, 0] == 992 * 16384  # 62 blocks of 16
    assert long.kv_bytes[0, 0] == 4096 * 16384


def test_capacity_is_the_usable_share():
    table = build_table(nodes_of_one(l4()), llama_2_7b(), TRAFFIC, CostOptions(memory_utilization=0.5))
    assert table.capacity_bytes.tolist() == [12 * GIB]


def test_links_become_hops_with_latency_and_occupancy_without():
    """4,096 elements of 2 bytes over 1.25e9 B/s and 1 ms."""
    table = build_table(nodes_of_one(l4("a"), l4("b")), llama_2_7b(), TRAFFIC)
    link = table.link_class[0, 1]
    assert table.occupancy_s[0, link] == pytest.approx(8192 / 1.25e9, abs=TICK_S)
    assert table.hop_s[0, link] == pytest.approx(1e-3 + 8192 / 1.25e9, abs=TICK_S)
    assert table.return_s[0, link] == pytest.approx(1e-3 + 4 / 1.25e9, abs=TICK_S)
    assert table.return_occupancy_s[0, link] == pytest.approx(4 / 1.25e9, abs=TICK_S)


def test_fingerprint_is_the_same_for_the_same_input_and_differs_for_any_other():
    def fingerprint(**changes) -> str:
        given = {"cards": (a100("a"), l4("b")), "model": llama_2_7b(), "traffic": TRAFFIC, "options": CostOptions()}
        given |= changes
        return build_table(
            nodes_of_one(*given["cards"]), given["model"], given["traffic"], given["options"]
        ).fingerprint

    assert fingerprint() == fingerprint()
    others = [
        fingerprint(cards=(l4("b"), a100("a"))),
        fingerprint(model=replace(llama_2_7b(), weight_bits=8)),
        fingerprint(traffic=TrafficProfile(751, 240)),
        fingerprint(options=CostOptions(kv_mode="tight")),
        fingerprint(options=CostOptions(framework_bytes=0)),
    ]
    assert len({fingerprint(), *others}) == 6


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(5)))
def test_relabelling_devices_moves_rows_and_changes_no_number(order):
    cards = [a100("a"), l4("b"), a100("c", 40), l4("d"), replace(l4("e"), layer_time_s=3e-3)]
    base = build_table(nodes_of_one(*cards), llama_2_7b(), TRAFFIC)
    moved = build_table(nodes_of_one(*(cards[i] for i in order)), llama_2_7b(), TRAFFIC)
    for new, old in enumerate(order):
        assert moved.stage_s(3, new, 2, 32) == base.stage_s(3, old, 2, 32)
        assert moved.stage_memory(3, new, 2, 32, 4) == base.stage_memory(3, old, 2, 32, 4)


def test_measured_layer_time_is_row_zero():
    card = replace(l4(), layer_time_s=2.0**-8)
    table = build_table(nodes_of_one(card), llama_2_7b(), TRAFFIC)
    assert np.all(table.layer_s[0] == 2.0**-8)
    assert np.all(np.diff(table.layer_s[1:, 0, 0]) >= 0)


def test_larger_batches_take_longer_but_less_a_sequence():
    table = build_table(nodes_of_one(l4()), llama_2_70b(), TRAFFIC)
    times = table.layer_s[1:, 0, 0]
    assert np.all(np.diff(times) >= 0)
    assert np.all(np.diff(times / np.array(table.batch_sizes[1:])) < 0)


def test_unequal_layers_keep_their_order():
    table = build_table(nodes_of_one(a100()), windowed_experts(), TRAFFIC, CostOptions(kv_mode="tight"))
    assert table.kv_bytes[0].tolist() == [512 * 2048, 992 * 2048] * 2
    assert table.layer_s[0, 0, 0] < table.layer_s[0, 0, 1]
    assert not table.has_identical_layers
    assert table.kv_mode == "tight"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"batch_grid": ()}, "batch_grid"),
        ({"batch_grid": (2, 1)}, "ascending"),
        ({"batch_grid": (0, 1)}, "from 1"),
        ({"memory_utilization": 0.0}, "memory_utilization"),
        ({"memory_utilization": 1.01}, "at most 1"),
        ({"framework_bytes": -1}, "framework_bytes"),
        ({"kv_mode": "loose"}, "safe, tight"),
        ({"block_tokens": 0}, "block_tokens"),
    ],
)
def test_bad_options_are_refused(changes, word):
    with pytest.raises(InputError, match=word):
        CostOptions(**changes)


def test_case_p11_end_stages_carry_embedding_head_and_logits_by_name():
    """Llama-2-7B on four cards: the first holds the embedding, the last head and logits, the inner ones neither."""
    table = build_table(nodes_of_one(*(l4(f"c{i}") for i in range(4))), llama_2_7b(), TRAFFIC)
    row = table.row_of_batch(64)
    first, inner, last = (table.stage_memory(row, 0, *layers, 64) for layers in ((0, 8), (8, 16), (24, 32)))
    assert set(first) == {"workspace", "weights", "kv", "embedding", "head"}
    assert (inner["embedding"], inner["head"]) == (0, 0)
    assert (first["embedding"], first["head"]) == (2 * 32000 * 4096, 0)
    # 64 decodes and the one chunk that 200 prefill tokens are; four bytes a logit
    assert last["head"] == 2 * (32000 * 4096 + 4096) + 65 * 4 * 32000
    assert sum(inner.values()) < min(sum(first.values()), sum(last.values()))


def test_case_p17_workspace_is_fixed_whatever_the_split_and_weights_follow_it():
    """4,200 MiB of workspace: a 7,707 MiB card with 5 % of 40 layers of 1,000 MiB fits, with 10 % it doesn't."""
    mib = 2**20
    small = replace(l4("small"), memory_bytes=7707 * mib)
    large = replace(l4("large"), memory_bytes=24576 * mib)
    layer = replace(llama_2_7b().layers[0], weight_bytes=1000 * mib)
    model = replace(llama_2_7b(), layers=(layer,) * 40)
    options = CostOptions(framework_bytes=4200 * mib, memory_utilization=1.0)
    table = build_table(nodes_of_one(large, small), model, TRAFFIC, options)

    def headroom(device: int, layers: int) -> int:
        used = sum(table.stage_memory(0, device, 3, 3 + layers, 1).values())
        return int(table.capacity_bytes[table.device_class[device]]) - used

    parts = [table.stage_memory(0, device, 3, 3 + layers, 1) for device in (0, 1) for layers in (2, 18)]
    assert len({p["workspace"] for p in parts}) == 1
    assert parts[1]["weights"] == 9 * parts[0]["weights"] == 18000 * mib
    assert headroom(1, 2) > 0 > headroom(1, 4)
    assert headroom(0, 18) > 0


def test_case_p24_batch_and_context_are_inputs_and_the_largest_feasible_batch_is_known():
    """24 layers of 0.9 GiB a card: what is left decides; a longer context leaves room for fewer sequences."""
    layer = replace(llama_2_7b().layers[0], weight_bytes=9 * GIB // 10, kv_bytes_per_token=1900)
    model = replace(llama_2_7b(), layers=(layer,) * 48)

    def largest(context: int) -> int:
        traffic = replace(TRAFFIC, context_tokens=context)
        options = CostOptions(framework_bytes=GIB, memory_utilization=0.98)
        table = build_table(nodes_of_one(l4("a"), l4("b")), model, traffic, options)
        stages = [(0, 0, 24), (1, 24, 48)]
        free = [
            int(table.capacity_bytes[0]) - sum(table.stage_memory(0, d, first, end, 0).values())
            for d, first, end in stages
        ]
        unit = [table.stage_memory(0, d, first, end, 1)["kv"] for d, first, end in stages]
        found = token_capacity(free, unit).total

        def fits(sequences: int) -> bool:
            used = [sum(table.stage_memory(0, d, first, end, sequences).values()) for d, first, end in stages]
            return max(used) <= table.capacity_bytes[0]

        assert fits(found)
        assert not fits(found + 1)
        return found

    assert largest(2048) > largest(4096) > 0
    assert largest(2048) // largest(4096) in (2, 3)


@pytest.mark.parametrize("model_id", catalogue.model_ids())
def test_whole_model_on_one_card_is_its_parameters(model_id):
    """Weights, embedding and head of each catalogue model add up to 2 bytes a parameter, a tied tensor once."""
    model = replace(catalogue.model(model_id), weight_bits=16)
    parts = build_table(nodes_of_one(a100()), model, TRAFFIC).stage_memory(0, 0, 0, model.num_layers, 1)
    logits = 4 * model.vocab_size
    assert parts["weights"] + parts["embedding"] + parts["head"] - logits == 2 * model.num_params


@pytest.mark.parametrize("cluster_id", catalogue.cluster_ids())
def test_published_clusters_have_a_table(cluster_id):
    """Llama-2-70B's heads divide by every published degree; each card belongs to a planning device."""
    cluster = catalogue.cluster(cluster_id)
    table = build_table(cluster, llama_2_70b(), TRAFFIC)
    assert {c for cards in table.device_cards for c in cards} == set(range(len(cluster.devices)))
    assert np.all(np.diff(table.layer_s[1:], axis=0) >= 0)


def test_thousand_devices_have_one_row_a_device_and_few_classes():
    cluster = nodes_of_one(*(l4(f"l{i}") if i % 3 else a100(f"a{i}") for i in range(1024)))
    table = build_table(cluster, llama_2_70b(), TRAFFIC)
    assert (table.num_devices, table.num_classes) == (1024, 2)
    assert table.link_class.shape == (1024, 1024)
    assert table.has_uniform_links
    assert table.has_exclusive_devices
