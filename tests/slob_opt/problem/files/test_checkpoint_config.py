from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from slob_opt.errors import InputError
from slob_opt.problem.catalogue import model, model_facts
from slob_opt.problem.files import load_model
from slob_opt.problem.files.checkpoint_config import known_types, model_from_config


def widths(hidden: int, layers: int, heads: int, kv: int | None, ffn: int, vocab: int, **more: Any) -> dict[str, Any]:
    """The keys that most configurations share, as their files have them."""
    kv_heads = {} if kv is None else {"num_key_value_heads": kv}
    common = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return common | kv_heads | {"intermediate_size": ffn, "vocab_size": vocab} | more


CATALOGUED = {
    "llama-2-7b": widths(4096, 32, 32, 32, 11008, 32000, model_type="llama", tie_word_embeddings=False),
    "llama-3.1-70b": widths(8192, 80, 64, 8, 28672, 128256, model_type="llama", attention_bias=False, mlp_bias=False),
    "llama-3.2-1b": widths(2048, 16, 32, 8, 8192, 128256, model_type="llama", head_dim=64, tie_word_embeddings=True),
    "tinyllama-1.1b": widths(2048, 22, 32, 4, 5632, 32000, model_type="llama", tie_word_embeddings=False),
    "smollm2-135m": widths(576, 30, 9, 3, 1536, 49152, model_type="llama", tie_word_embeddings=True),
    "mistral-7b": widths(4096, 32, 32, 8, 14336, 32000, model_type="mistral", sliding_window=4096),
    "qwen2.5-7b": widths(
        *(3584, 28, 28, 4, 18944, 152064), model_type="qwen2", use_sliding_window=False, sliding_window=131072
    ),
    "qwen2.5-0.5b": widths(896, 24, 14, 2, 4864, 151936, model_type="qwen2", tie_word_embeddings=True),
    "qwen3-8b": widths(4096, 36, 32, 8, 12288, 151936, model_type="qwen3", head_dim=128, tie_word_embeddings=False),
    "qwen3-0.6b": widths(1024, 28, 16, 8, 3072, 151936, model_type="qwen3", head_dim=128, tie_word_embeddings=True),
    "phi-3-mini": widths(3072, 32, 32, 32, 8192, 32064, model_type="phi3", sliding_window=2047),
    "phi-4": widths(5120, 40, 40, 10, 17920, 100352, model_type="phi3", sliding_window=None),
    "gemma-2-2b": widths(2304, 26, 8, 4, 9216, 256000, model_type="gemma2", head_dim=256, sliding_window=4096),
    "gemma-2-27b": widths(4608, 46, 32, 16, 36864, 256000, model_type="gemma2", head_dim=128, sliding_window=4096),
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
    "gpt2-xl": {
        **{"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024},
        **{"vocab_size": 50257, "n_inner": None},
    },
    "opt-30b": {
        **{"model_type": "opt", "hidden_size": 7168, "num_hidden_layers": 48, "num_attention_heads": 56},
        **{"ffn_dim": 28672, "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 7168},
    },
    "bloom-176b": {
        "model_type": "bloom",
        "n_embed": 14336,
        "n_layer": 70,
        "num_attention_heads": 112,
        "vocab_size": 250880,
    },
    "mixtral-8x7b": widths(
        *(4096, 32, 32, 8, 14336, 32000), model_type="mixtral", num_local_experts=8, num_experts_per_tok=2
    ),
    "deepseek-v2-lite": widths(
        *(2048, 27, 16, 16, 10944, 102400),
        **{"model_type": "deepseek_v2", "kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64},
        **{"qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2},
        **{"num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1},
    ),
    "chatglm3-6b": {
        **{"model_type": "chatglm", "hidden_size": 4096, "num_layers": 28, "num_attention_heads": 32},
        **{"multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128, "ffn_hidden_size": 13696},
        **{"padded_vocab_size": 65024, "add_qkv_bias": True, "add_bias_linear": False, "tie_word_embeddings": False},
    },
}

# Counts published with the checkpoint (model card or safetensors metadata) of models that the catalogue lacks.
PUBLISHED = {
    "OLMo-2-1124-7B": (7298617344, widths(4096, 32, 32, 32, 11008, 100352, model_type="olmo2")),
    "stablelm-3b-4e1t": (2795443200, widths(2560, 32, 32, 32, 6912, 50304, model_type="stablelm", use_qkv_bias=False)),
    "SmolLM3-3B": (3075098624, widths(2048, 36, 16, 4, 11008, 128256, model_type="smollm3")),
    "starcoder2-3b": (3030371328, widths(3072, 30, 24, 2, 12288, 49152, model_type="starcoder2", use_bias=True)),
    "gemma-7b": (8537680896, widths(3072, 28, 16, 16, 24576, 256000, model_type="gemma", head_dim=256)),
    "gemma-3-1b": (
        999885952,
        widths(1152, 26, 4, 1, 6912, 262144, model_type="gemma3_text", head_dim=256, sliding_window=512),
    ),
    "Qwen1.5-MoE-A2.7B": (
        14315784192,
        widths(
            *(2048, 24, 16, 16, 5632, 151936),
            **{"model_type": "qwen2_moe", "num_experts": 60, "num_experts_per_tok": 4, "decoder_sparse_step": 1},
            **{"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "tie_word_embeddings": False},
        ),
    ),
    "Qwen3-30B-A3B": (
        30532122624,
        widths(
            *(2048, 48, 32, 4, 6144, 151936),
            **{"model_type": "qwen3_moe", "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8},
            **{"moe_intermediate_size": 768, "mlp_only_layers": [], "tie_word_embeddings": False},
        ),
    ),
    "DeepSeek-V2": (
        235741434880,
        widths(
            *(5120, 60, 128, 128, 12288, 102400),
            **{"model_type": "deepseek_v2", "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64},
            **{"qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 160, "n_shared_experts": 2},
            **{"num_experts_per_tok": 6, "moe_intermediate_size": 1536, "first_k_dense_replace": 1},
        ),
    ),
}


def read(config: dict[str, Any], name: str = "m"):
    return model_from_config(config, file="config.json", name=name)


@pytest.mark.parametrize("id_", CATALOGUED)
def test_a_config_gives_the_model_of_the_catalogue(id_):
    made, known = read(CATALOGUED[id_], id_), model(id_)
    assert made.num_params == known.num_params
    if model_facts(id_).is_published_exact:
        assert made.num_params == model_facts(id_).published_params
    for have, want in zip(made.layers, known.layers, strict=True):
        assert (have.attn_params, have.mlp_params, have.active_params) == (
            want.attn_params,
            want.mlp_params,
            want.active_params,
        )
        assert (have.num_heads, have.num_kv_heads, have.head_dim) == (want.num_heads, want.num_kv_heads, want.head_dim)
        assert have.kv_elems_per_token == want.kv_elems_per_token
        if id_ != "phi-3-mini":  # its file has a window of 2047 that the catalogue's source leaves out
            assert have.window_tokens == want.window_tokens
    assert (made.embedding_params, made.head_params) == (known.embedding_params, known.head_params)
    assert made.has_tied_embeddings == known.has_tied_embeddings


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_gives_the_published_count(name):
    published, config = PUBLISHED[name]
    assert read(config, name).num_params == published


def test_every_known_type_is_tested():
    tested = {config["model_type"] for config in CATALOGUED.values()}
    assert tested | {config["model_type"] for _, config in PUBLISHED.values()} == set(known_types())


def test_gemma_3_has_one_full_layer_in_six():
    windows = [layer.window_tokens for layer in read(PUBLISHED["gemma-3-1b"][1]).layers]
    assert windows[:7] == [512, 512, 512, 512, 512, None, 512]
    assert windows.count(None) == 4


def test_a_multimodal_file_is_read_by_its_language_model():
    """Gemma-3-4B: 3,880,263,168 parameters of the language model; the file leaves heads and vocabulary to defaults."""
    inner = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    made = read({"model_type": "gemma3", "text_config": inner | {"sliding_window": 1024}, "vision_config": {}})
    assert made.num_params == 3880263168
    assert made.layers[0].num_kv_heads == 4


def test_layer_types_win_over_the_usual_pattern():
    config = CATALOGUED["gemma-2-2b"] | {"layer_types": ["full_attention"] * 25 + ["sliding_attention"]}
    assert [layer.window_tokens for layer in read(config).layers] == [None] * 25 + [4096]
    with pytest.raises(InputError, match="found 3 entries, expected 26"):
        read(config | {"layer_types": ["full_attention"] * 3})


def test_qwen_windows_begin_after_the_full_layers():
    config = CATALOGUED["qwen2.5-0.5b"] | {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 20}
    assert [layer.window_tokens for layer in read(config).layers] == [None] * 20 + [1024] * 4


def test_qwen_dense_layers_by_step_and_by_list():
    config = PUBLISHED["Qwen3-30B-A3B"][1] | {"decoder_sparse_step": 2, "mlp_only_layers": [1]}
    assert [layer.is_moe for layer in read(config).layers[:4]] == [False, False, False, True]


@pytest.mark.parametrize(
    ("plan", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4}, 4.0),
        ({"quant_method": "awq", "w_bit": 4}, 4.0),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, 8.0),
        ({"quant_method": "fp8"}, 8.0),
        ({"quant_method": "abacus"}, 16.0),
    ],
)
def test_quantised_checkpoints_keep_their_bits(plan, bits):
    made = read(CATALOGUED["llama-2-7b"] | {"quantization_config": plan})
    assert made.weight_bits == bits
    assert made.uncertain


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        ({"model_type": "lama"}, "model_type", "did you mean 'llama'"),
        ({"model_type": "zamba-99"}, "model_type", "can't be read, write a model file"),
        ({"model_type": None}, "model_type", "is missing"),
        ({"hidden_size": None}, "hidden_size", "is missing"),
        ({"hidden_size": 4096.5}, "hidden_size", "found 4096.5"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "at most 10000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "found 0"),
        ({"num_attention_heads": 33}, "head_dim", "is not whole"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "expected true or false"),
        ({"num_key_value_heads": 5}, None, "do not divide"),
        ({"quantization_config": 4}, "quantization_config", "expected a mapping"),
    ],
)
def test_bad_configs(change, key, message):
    with pytest.raises(InputError) as caught:
        read(CATALOGUED["llama-2-7b"] | change)
    assert caught.value.file == "config.json"
    assert caught.value.key == key
    assert message in caught.value.message


@pytest.mark.parametrize(
    "config",
    [
        CATALOGUED["opt-30b"] | {"word_embed_proj_dim": 512},
        CATALOGUED["deepseek-v2-lite"] | {"moe_layer_freq": 2},
        PUBLISHED["stablelm-3b-4e1t"][1] | {"qk_layernorm": True},
    ],
)
def test_variants_that_would_be_counted_wrong_are_refused(config):
    with pytest.raises(InputError, match="can't be read, write a model file"):
        read(config)


def checkpoint(folder, layers: int, config: dict[str, Any]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = {f"model.layers.{i}.mlp.up_proj.weight": "a.safetensors" for i in range(layers)} | {"lm_head.weight": "b"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")


def test_a_folder_is_read_and_its_layers_are_compared(tmp_path):
    """Case P32: 30 layers on 4 stages silently built as 4x7=28."""
    config = CATALOGUED["smollm2-135m"]
    checkpoint(tmp_path / "good", 30, config)
    made = load_model(tmp_path / "good")
    assert (made.name, made.num_layers) == ("good", 30)
    assert load_model(tmp_path / "good" / "config.json") == made
    checkpoint(tmp_path / "bad", 28, config)
    with pytest.raises(InputError, match=r"config.json says 30 layers, the weights have tensors of 28"):
        load_model(tmp_path / "bad")


def test_one_file_of_weights_is_compared_as_well(tmp_path):
    folder = tmp_path / "gpt"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CATALOGUED["gpt2"]), encoding="utf-8")
    header = json.dumps({"__metadata__": {}, **{f"h.{i}.attn.c_attn.weight": {} for i in range(11)}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(InputError, match=r"says 12 layers, the weights have tensors of 11"):
        load_model(folder)
    (folder / "model.safetensors").write_bytes(b"\x00")
    with pytest.raises(InputError, match="list of tensors can't be read"):
        load_model(folder)


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(InputError, match=r"has no config.json"):
        load_model(tmp_path)
