"""GGUF files made from a Hugging Face folder, as llama.cpp's converter makes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from safetensors.numpy import load_file

OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Return rows as llama.cpp wants them: row 2j + h of a head is row h·n/2 + j of Hugging Face's."""
    rows = weight.shape[0] // num_heads
    order = [head * rows + half * rows // 2 + pair for head in range(num_heads) for pair in range(rows // 2)
             for half in (0, 1)]  # fmt: skip
    return weight[order]


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a Hugging Face tensor."""
    stem = name.removesuffix(".weight")
    if stem in OUTER:
        return f"{OUTER[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.weight"


def write_gguf(
    path: Path,
    folder: Path,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    *,
    change: dict[str, object] | None = None,
    leave_out: str | None = None,
    extra: str | None = None,
) -> dict[str, np.ndarray]:
    """Write the model of a folder, its matrices of a kind; return what its weights are then, by Hugging Face's names.

    Parameters
    ----------
    path, folder
        To and from.
    kind
        Of the matrices; norms stay float32.
    change
        Other values of keys.
    leave_out, extra
        A tensor that isn't written, and one that is besides.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = {entry["id"] for entry in tokenizer["added_tokens"]}
    template = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    tokens = list(tokenizer["model"]["vocab"])
    tokens += [f"[PAD{index}]" for index in range(len(tokens), config["vocab_size"])]
    values: dict[str, object] = {
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.padding_token_id": config["pad_token_id"],
        "tokenizer.chat_template": template,
        **(change or {}),
    }
    arch = str(values.pop("general.architecture", "llama"))
    writer = GGUFWriter(path, arch)
    for key, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            assert isinstance(value, list)
            writer.add_array(key, value)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    now = {}
    for name, given in load_file(folder / "model.safetensors").items():
        is_matrix = given.ndim == 2
        packed = quantize(given, kind) if is_matrix else given
        now[name] = _unpacked(packed, kind) if is_matrix else given
        count = heads.get(name.split(".")[-2])
        # Rows are quantised each by itself, so that they may change places afterwards.
        data = interleaved(packed, count) if count else packed
        if gguf_name(name) != leave_out:
            writer.add_tensor(gguf_name(name), data, raw_dtype=kind if is_matrix else None)
    if extra is not None:
        writer.add_tensor(extra, np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return now


def _unpacked(packed: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Return Q4_1 or F32 rows as float32; Q4_1 by the format's definition: 32 numbers of scale · digit + least."""
    if kind is GGMLQuantizationType.F32:
        return packed
    assert kind is GGMLQuantizationType.Q4_1
    blocks = np.ascontiguousarray(packed).reshape(packed.shape[0], -1, 20)
    scale = blocks[..., 0:2].copy().view(np.float16).astype(np.float32)
    least = blocks[..., 2:4].copy().view(np.float16).astype(np.float32)
    digits = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1).astype(np.float32)
    return (digits * scale + least).reshape(packed.shape[0], -1)
