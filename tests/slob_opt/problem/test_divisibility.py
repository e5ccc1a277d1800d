from __future__ import annotations

import pytest

from slob_opt.errors import InputError
from slob_opt.problem import LayerSpec, ModelSpec, allowed_tp_degrees, check_divisibility


def model(*heads: tuple[int, int], name: str = "m") -> ModelSpec:
    """A model with one layer for each (heads, KV heads)."""
    layers = tuple(LayerSpec(100, 100, num_heads=h, num_kv_heads=kv, head_dim=8) for h, kv in heads)
    return ModelSpec(name, hidden_size=64, vocab_size=10, layers=layers, embedding_params=640, head_params=640)


def test_cards_that_do_not_divide_the_heads_are_refused_with_the_allowed_degrees():
    """Case P26: 28 heads, 4 KV heads, 8 cards; divisors of 28 are 1 2 4 7 14 28, the KV rule drops 7 and 14."""
    with pytest.raises(InputError, match=r"28 heads % TP 8 = 4.*allowed TP degrees with 8 GPUs: 1, 2, 4$"):
        check_divisibility(model((28, 4)), [8], num_gpus=8)
    assert allowed_tp_degrees(model((28, 4))) == (1, 2, 4, 28)
    assert allowed_tp_degrees(model((28, 28))) == (1, 2, 4, 7, 14, 28)


def test_three_cards_and_forty_heads_allow_one_and_two():
    """Case P27, the rule: TP=3 is impossible, TP=2 possible."""
    assert allowed_tp_degrees(model((40, 40)), 3) == (1, 2)
    check_divisibility(model((40, 40)), [1, 2], num_gpus=3)
    with pytest.raises(InputError, match="40 heads % TP 3 = 1"):
        check_divisibility(model((40, 40)), [3], num_gpus=3)


def test_all_violated_rules_are_in_one_message():
    """Case P28: 64 heads and 256 experts on 3 cards."""
    with pytest.raises(InputError) as caught:
        check_divisibility(model((64, 64)), [3], ep_degrees=[3], num_experts=256, num_gpus=3)
    text = str(caught.value)
    for part in ("64 heads % TP 3 = 1", "64 KV heads and TP 3", "256 experts % EP 3 = 1"):
        assert part in text
    assert "allowed TP degrees with 3 GPUs: 1, 2" in text
    assert "allowed EP degrees: 1, 2" in text


def test_kv_heads_may_be_replicated():
    """8 cards, 4 KV heads: each card holds one KV head, two cards the same one."""
    check_divisibility(model((32, 4)), [8])
    assert allowed_tp_degrees(model((32, 4))) == (1, 2, 4, 8, 16, 32)
    with pytest.raises(InputError, match="6 KV heads and TP 4 do not divide each other"):
        check_divisibility(model((24, 6)), [4])


def test_every_kind_of_layer_counts():
    assert allowed_tp_degrees(model((12, 12), (8, 8))) == (1, 2, 4)


def test_more_cards_than_there_are():
    with pytest.raises(InputError, match="TP 4 needs 4 GPUs, there are 2"):
        check_divisibility(model((8, 8)), [4], num_gpus=2)


def test_experts_without_experts():
    with pytest.raises(InputError, match="EP 2 for a model without experts"):
        check_divisibility(model((8, 8)), ep_degrees=[2])
    check_divisibility(model((8, 8)), ep_degrees=[1])


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_a_degree_is_a_whole_number_from_one(bad):
    with pytest.raises(InputError, match="whole number from 1"):
        check_divisibility(model((8, 8)), [bad])
