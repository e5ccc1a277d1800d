from __future__ import annotations

import dataclasses

import pytest

from slob_opt.errors import InputError
from slob_opt.problem import Architecture, ExpertShape, LatentShape, build_model

TINY = Architecture(
    "tiny", hidden_size=8, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=2, ffn_size=16, vocab_size=10
)


def test_a_dense_layer_by_hand():
    """Q, O: 8*8 each; K, V: 8*4 each; two RMS norms of 8; three matrices of 8*16."""
    spec = build_model(TINY)
    layer = spec.layers[0]
    assert layer.attn_params == 64 + 64 + 32 + 32 + 16
    assert layer.mlp_params == 384
    assert layer.active_mlp_params is None
    assert spec.embedding_params == 80
    assert spec.head_params == 88  # with the final norm
    assert spec.num_params == 80 + 88 + 4 * (208 + 384)
    assert spec.has_identical_layers


def test_tied_embeddings_count_once_but_the_final_norm_stays():
    spec = build_model(dataclasses.replace(TINY, has_tied_embeddings=True, learned_positions=5))
    assert spec.tied_params == 80
    assert spec.num_params == 80 + 5 * 8 + 8 + 4 * 592


def test_biases_and_layernorm_by_hand():
    """Q 8, K 4, V 4, O 8 biases; LayerNorm 2*8 twice; two matrices of 8*16 with biases 16 and 8."""
    shape = dataclasses.replace(
        TINY, is_gated=False, has_norm_bias=True, has_qkv_bias=True, has_out_bias=True, has_mlp_bias=True
    )
    layer = build_model(shape).layers[0]
    assert layer.attn_params == 192 + 16 + 8 + 32
    assert layer.mlp_params == 256 + 24


def test_windows_repeat_through_the_layers():
    spec = build_model(dataclasses.replace(TINY, window_pattern=(6, None, 6)))
    assert [layer.window_tokens for layer in spec.layers] == [6, None, 6, 6]


def test_experts_by_hand():
    """Router 8*4; expert 3*8*2 = 48; shared expert 3*8*3 = 72 with a gate of 8; layer 0 is dense."""
    experts = ExpertShape(4, 2, 2, shared_ffn_size=3, has_shared_gate=True, dense_layers=(0,))
    spec = build_model(dataclasses.replace(TINY, experts=experts))
    dense, routed = spec.layers[0], spec.layers[1]
    assert dense.mlp_params == 384
    assert not dense.is_moe
    assert routed.mlp_params == 32 + 8 + 72 + 4 * 48
    assert routed.active_mlp_params == 32 + 8 + 72 + 2 * 48
    assert routed.is_moe
    assert not spec.has_identical_layers


def test_latent_attention_by_hand():
    """Q 8*4*5; down 8*(6+2) and its norm 6; up 6*4*(3+3); O 4*3*8; two norms of 8; cache 6+2 elements."""
    latent = LatentShape(kv_lora_rank=6, qk_rope_head_dim=2, qk_nope_head_dim=3, v_head_dim=3)
    layer = build_model(dataclasses.replace(TINY, num_kv_heads=4, head_dim=5, latent=latent)).layers[0]
    assert layer.attn_params == 160 + 64 + 6 + 144 + 96 + 16
    assert layer.kv_elems_per_token == 8
    compressed = dataclasses.replace(latent, q_lora_rank=7)
    layer = build_model(dataclasses.replace(TINY, num_kv_heads=4, head_dim=5, latent=compressed)).layers[0]
    assert layer.attn_params == 56 + 7 + 7 * 20 + 64 + 6 + 144 + 96 + 16


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"window_pattern": ()}, "windows"),
        ({"window_pattern": (0,)}, "windows"),
        ({"window_pattern": (1,) * 5}, "5 attention windows for the 4 layers"),
        ({"qk_norm": "all"}, "qk_norm"),
        ({"num_kv_heads": 3}, "do not divide"),
    ],
)
def test_wrong_widths_are_refused(change, text):
    with pytest.raises(InputError, match=text):
        build_model(dataclasses.replace(TINY, **change))


def test_more_active_than_all_experts_is_refused():
    with pytest.raises(InputError, match="top_k is 5 of 4"):
        ExpertShape(4, 5, 2)
