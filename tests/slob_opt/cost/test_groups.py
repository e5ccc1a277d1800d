from dataclasses import replace

import pytest
from cost_facts import ETHERNET, PCIE, a100, l4, llama_2_7b, llama_2_70b, nodes_of_one, one_node

from slob_opt.cost.groups import form_groups, skipped_degrees
from slob_opt.errors import InputError
from slob_opt.problem.architecture import Architecture, build_model
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Link


def test_single_cards_only_by_default():
    groups = form_groups(one_node(a100("a"), a100("b"), l4("c")), llama_2_7b())
    assert groups.cards == ((0,), (1,), (2,))
    assert groups.names == ("a", "b", "c")
    assert groups.class_of.tolist() == [0, 0, 1]
    assert groups.class_names == ("a100-80gb", "l4")


def test_groups_are_aligned_and_nested():
    cards = [a100(f"g{i}") for i in range(8)]
    groups = form_groups(one_node(*cards, tp_degrees=(1, 2, 4, 8)), llama_2_70b())
    assert groups.cards[8:] == ((0, 1), (2, 3), (4, 5), (6, 7), (0, 1, 2, 3), (4, 5, 6, 7), tuple(range(8)))
    for a in groups.cards:
        for b in groups.cards:
            assert set(a) <= set(b) or set(b) <= set(a) or not set(a) & set(b)
    assert [groups.classes[c].degree for c in groups.class_of] == [1] * 8 + [2] * 4 + [4, 4, 8]


def test_only_equal_cards_of_one_node_form_a_group():
    """Cards 0, 2 and 3 are equal, card 1 is not: one pair (0, 2), card 3 is left over at degree 2."""
    groups = form_groups(one_node(a100("a"), l4("b"), a100("c"), a100("d"), tp_degrees=(2,)), llama_2_7b())
    assert groups.cards == ((0, 2),)
    assert groups.names == ("ax2",)


def test_node_with_its_full_degree_only_is_one_device():
    groups = form_groups(one_node(*(a100(f"g{i}") for i in range(4)), tp_degrees=(4,)), llama_2_70b())
    assert groups.cards == ((0, 1, 2, 3),)
    assert groups.class_names == ("a100-80gb x4",)


def test_case_p26_degree_that_does_not_divide_the_heads_is_refused_with_those_that_do():
    """28 heads, 4 KV heads, 8 GPUs: 1, 2 and 4 divide both; 7 divides 28 but neither 4 nor is divided by it."""
    model = build_model(Architecture("qwen2.5-7b", 3584, 28, 28, 4, 128, 18944, 152064))
    cluster = one_node(*(a100(f"g{i}") for i in range(8)), tp_degrees=(8,))
    with pytest.raises(InputError, match="28") as raised:
        form_groups(cluster, model)
    assert str(raised.value).endswith("allowed TP degrees with 8 GPUs: 1, 2, 4")
    assert "node n" in str(raised.value)


def test_case_p27_three_cards_and_forty_heads_never_split_in_three():
    model = build_model(Architecture("llama-2-13b", 5120, 40, 40, 40, 128, 13824, 32000))
    cards = [a100(f"g{i}") for i in range(3)]
    with pytest.raises(InputError, match="40 heads % TP 3 = 1"):
        form_groups(one_node(*cards, tp_degrees=(3,)), model)
    assert form_groups(one_node(*cards, tp_degrees=(1, 3)), model).cards == ((0,), (1,), (2,))
    assert form_groups(one_node(*cards, tp_degrees=(1, 2)), model).cards == ((0,), (1,), (2,), (0, 1))


def test_a_degree_that_does_not_divide_is_left_out_where_there_is_another():
    """9 heads and 3 KV heads: of 1, 2, 4 and 3 only 1 and 3 remain; a node that offers nothing else is refused."""
    model = build_model(Architecture("smollm2-135m", 576, 30, 9, 3, 64, 1536, 49152))
    cards = [a100(f"g{i}") for i in range(4)]
    cluster = one_node(*cards, tp_degrees=(1, 2, 3, 4))
    assert form_groups(cluster, model).cards == ((0,), (1,), (2,), (3,), (0, 1, 2))
    assert skipped_degrees(cluster, model) == (("n", 2), ("n", 4))
    assert skipped_degrees(cluster, llama_2_70b()) == (("n", 3),)
    with pytest.raises(InputError, match=r"9 heads % TP 2 = 1.*9 heads % TP 4 = 1"):
        form_groups(one_node(*cards, tp_degrees=(2, 4)), model)


def test_degree_with_too_few_equal_cards_is_refused():
    with pytest.raises(InputError, match="at most 2 equal"):
        form_groups(one_node(a100("a"), a100("b"), l4("c"), l4("d"), tp_degrees=(1, 4)), llama_2_70b())


def test_equal_numbers_share_a_class_whatever_the_name():
    groups = form_groups(nodes_of_one(a100("a"), replace(a100("b"), gpu="other name")), llama_2_7b())
    assert groups.class_of.tolist() == [0, 0]
    assert groups.class_names == ("a100-80gb/other name",)


def test_different_numbers_never_share_a_class_and_class_names_differ():
    cards = (a100("a"), a100("b", 40), replace(a100("c"), layer_time_s=1e-3), replace(a100("d"), bytes_per_s=1e12))
    groups = form_groups(nodes_of_one(*cards), llama_2_7b())
    assert groups.class_of.tolist() == [0, 1, 2, 3]
    assert len(set(groups.class_names)) == 4


def test_groups_with_unequal_inner_links_are_different_classes():
    """The slowest pair of a group counts, in both numbers."""
    nvlink, mixed = Link(250e9, 2e-6), Link(20e9, 1e-6)
    nodes = (
        Node("n", (a100("a"), a100("b")), intra_link=nvlink, tp_degrees=(2,)),
        Node("m", (a100("c"), a100("d")), intra_link=nvlink, tp_degrees=(2,)),
    )
    cluster = Cluster("two", nodes, ETHERNET, PCIE, {("d", "c"): mixed})
    groups = form_groups(cluster, llama_2_7b())
    assert [groups.classes[c].link for c in groups.class_of] == [nvlink, Link(20e9, 2e-6)]
