from __future__ import annotations

import pytest

from slob_opt.errors import InputError
from slob_opt.problem.catalogue import model
from slob_opt.problem.files import load_model


def load(folder, text):
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return load_model(path)


WIDTHS = "hidden_size: 64\nvocab_size: 100\nnum_heads: 8\nffn_size: 128\n"


def test_widths_give_the_same_model_as_the_catalogue(tmp_path):
    made = load(
        tmp_path,
        """
schema_version: 1
name: mixtral-8x7b
hidden_size: 4096
vocab_size: 32000
num_layers: 32
num_heads: 32
num_kv_heads: 8
ffn_size: 14336
experts: {num_experts: 8, top_k: 2, expert_ffn_size: 14336}
max_position: 32768
""",
    )
    assert made.layers == model("mixtral-8x7b").layers
    assert made.num_params == model("mixtral-8x7b").num_params
    assert made.max_position == 32768


def test_attention_kind_is_per_layer(tmp_path):
    """Case G08: 25 of 30 layers use a window of 1024."""
    pattern = "attention: [1024, 1024, 1024, 1024, 1024, full]\n"
    layers = load(tmp_path, WIDTHS + "num_layers: 30\n" + pattern).layers
    windows = [layer.window_tokens for layer in layers]
    assert windows.count(1024) == 25
    assert windows.count(None) == 5
    assert windows[5] is None
    held = sum(min(8192, layer.window_tokens or 8192) for layer in layers)
    assert held == 25 * 1024 + 5 * 8192  # not 30 * 8192
    groups = "layers:\n- {count: 25, weights: 1MiB, window: 1024}\n- {count: 5, weights: 1MiB, window: full}\n"
    grouped = load(tmp_path, "hidden_size: 64\nvocab_size: 100\nnum_heads: 8\n" + groups)
    assert [layer.window_tokens for layer in grouped.layers] == [1024] * 25 + [None] * 5


def test_layers_by_their_bytes(tmp_path):
    made = load(
        tmp_path,
        """
hidden_size: 8192
vocab_size: 128256
num_layers: 80
num_heads: 64
num_kv_heads: 8
layers:
  - {count: 79, weights: 1.711GB, kv_per_token: 4096B}
  - {count: 1, weights: 2GB, kv_per_token: 4096B}
embedding: 2.1GB
head: 2.1GB
""",
    )
    assert made.num_layers == 80
    assert made.layers[0].weight_bytes == 1711000000
    assert made.layers[0].kv_bytes_per_token == 4096
    assert made.layers[0].num_params == 855500000  # 16 bits each
    assert made.layers[79].weight_bytes == 2 * 10**9
    assert made.embedding_params * 2 == made.head_params * 2 == 2100000000
    assert made.name == "mine"


def test_layers_by_their_parameters(tmp_path):
    made = load(
        tmp_path,
        "hidden_size: 64\nvocab_size: 10\nnum_heads: 4\nweight_bits: 4\nkv_bits: 8\n"
        "layers: [{attn_params: 100, mlp_params: 900, active_mlp_params: 300, head_dim: 32, num_kv_heads: 2}]\n",
    )
    layer = made.layers[0]
    assert (layer.num_params, layer.active_params, layer.num_kv_heads, layer.head_dim) == (1000, 400, 2, 32)
    assert (made.weight_bits, made.kv_bits, made.activation_bits) == (4, 8, 16)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (WIDTHS + "num_layer: 3", "num_layer", "did you mean 'num_layers'"),
        (WIDTHS, "num_layers", "'num_layers' is missing"),
        ("hidden_size: 64\nvocab_size: 10\nnum_layers: 2\nnum_heads: 7\nffn_size: 8", "head_dim", "not whole"),
        (WIDTHS + "num_layers: 2\nnum_kv_heads: 3", None, "do not divide"),
        (WIDTHS + "num_layers: 2\nattention: [0]", "attention[0]", "window of at least 1 token, or full"),
        (WIDTHS + "num_layers: 2\nattention: [some]", "attention[0]", "found 'some'"),
        (WIDTHS + "num_layers: 2\nattention: [1, 2, 3]", None, "3 attention windows for the 2 layers"),
        (WIDTHS + "num_layers: 2\nembedding: 1GB", "embedding", "only together with layers"),
        (WIDTHS + "num_layers: 2\nweight_bits: 0", "weight_bits", "greater than 0"),
        (WIDTHS + "num_layers: 2\nweight_bits: .nan", "weight_bits", "finite"),
        (
            WIDTHS + "num_layers: 2\nexperts: {num_experts: 4, top_k: 5, expert_ffn_size: 8}",
            None,
            "top_k is 5 of 4",
        ),
        (
            WIDTHS + "num_layers: 2\nexperts: {num_experts: 4, top_k: 2, expert_ffn_size: 8, dense_layers: [2]}",
            "experts.dense_layers",
            "below 2",
        ),
        # case P32: the counts are checked against the number of layers
        (
            "hidden_size: 64\nvocab_size: 10\nnum_layers: 30\nlayers: [{count: 28, weights: 1MiB}]",
            "num_layers",
            "found 30, expected 28",
        ),
        ("hidden_size: 64\nvocab_size: 10\nlayers: [{count: 2}]", "layers[0]", "needs weights"),
        ("hidden_size: 64\nvocab_size: 10\nlayers: [{weights: 1}]", "layers[0].weights", "without a unit"),
        ("hidden_size: 64\nvocab_size: 10\nffn_size: 8\nlayers: [{weights: 1GB}]", "ffn_size", "without layers"),
        ("hidden_size: 64\nvocab_size: 10\nlayers: []", "layers", "at least 1"),
        (WIDTHS + "num_layers: 1000000000000", "num_layers", "less than or equal to 10000"),
        (
            "hidden_size: 64\nvocab_size: 10\nlayers: [" + "{count: 9999, weights: 1GB}, " * 2 + "]",
            "layers",
            "at most 10000",
        ),
        ("", "hidden_size", "is missing"),
    ],
)
def test_bad_input(tmp_path, text, key, message):
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    assert caught.value.file is not None
    assert caught.value.file.endswith("mine.yaml")
    assert caught.value.key == key
    assert message in caught.value.message
