"""A Llama in a GGUF file, turned once into a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from gguf.constants import Keys, TokenType
from safetensors import SafetensorError
from safetensors.torch import save_file

from runtime.byte_tokenizer import ByteTokenizer, write_json
from slob_opt.errors import InputError

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
"""Hugging Face's names of the tensors of a layer, by llama.cpp's (gguf-py 0.19, tensor_mapping.py, LLAMA)."""

_SPLITS_DIGITS = {"gpt-2": False, "smollm": True}
"""Ways to cut text into pieces that are known here, by llama.cpp's name: whether each digit is a piece of its own."""

_ROLES = {
    "bos_token": Keys.Tokenizer.BOS_ID,
    "eos_token": Keys.Tokenizer.EOS_ID,
    "unk_token": Keys.Tokenizer.UNK_ID,
    "pad_token": Keys.Tokenizer.PAD_ID,
}

Progress = Callable[[str], None]
"""Takes a line that tells what is being done."""


def convert_gguf(file: Path, folder: Path, progress: Progress) -> None:
    """Write a GGUF file's model as config.json, generation_config.json, model.safetensors and a tokenizer.

    Weights are written as bfloat16, the type in which such models are published and served. That rounds a weight by at
    most 0.4 %, where four bits have changed it by several per cent before: SmolLM2-135M from Q4_1 has the same
    perplexity to 0.003 % as in float32, and 99.5 % of its greedy tokens over 1,000 tokens of text (measured with
    transformers 5.24).

    Parameters
    ----------
    file
        Llama architecture with a byte-level tokenizer, of any quantisation that the ``gguf`` package knows.
    folder
        Is there, and empty.
    progress
        Told of each part.

    Raises
    ------
    InputError
        When the file is damaged, or holds another kind of model.
    """
    progress("reading the GGUF file")
    source = _open(file)
    try:
        facts = _Facts(file, {name: field.contents() for name, field in source.fields.items()})
        facts.check()
        tensors = {tensor.name: tensor for tensor in source.tensors}
        names = _names(file, tensors, facts)
        progress(f"converting {len(names)} tensors to bfloat16")
        weights = {new: _weight(tensors[old], facts).to(torch.bfloat16) for old, new in names.items()}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the file is damaged: {error}", file=str(file)) from error
    config = facts.config("lm_head.weight" not in weights)
    _check_shapes(file, weights, config)
    progress(f"writing {sum(w.numel() * w.element_size() for w in weights.values()) / 1e6:.0f} MB of weights")
    try:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # it hides the operating system's error
        raise InputError(f"the weights can't be written: {error}", file=str(folder)) from error
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", facts.token_ids())
    progress("writing the tokenizer")
    facts.tokenizer().write(folder)


class _Facts:
    """What the file's keys say.

    Parameters
    ----------
    file
        For messages.
    keys
        By name.
    """

    def __init__(self, file: Path, keys: Mapping[str, Any]) -> None:
        self._file, self._keys = file, keys

    def __getitem__(self, name: str) -> Any:
        name = name.format(arch="llama")
        if name not in self._keys:
            raise InputError("the key is missing", file=str(self._file), key=name)
        return self._keys[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or `default` where the file says nothing."""
        return self._keys.get(name.format(arch="llama"), default)

    def check(self) -> None:
        """Raise InputError for a model that would be converted wrongly."""
        scaling = self.get(Keys.Rope.SCALING_TYPE, "none")
        for key, found, known in (
            (Keys.General.ARCHITECTURE, self[Keys.General.ARCHITECTURE], ("llama",)),
            (Keys.Rope.SCALING_TYPE, scaling, ("none",)),
            (Keys.LLM.EXPERT_COUNT, self.get(Keys.LLM.EXPERT_COUNT, 0), (0,)),
            (Keys.Tokenizer.MODEL, self[Keys.Tokenizer.MODEL], ("gpt2",)),
            (Keys.Tokenizer.PRE, self[Keys.Tokenizer.PRE], tuple(_SPLITS_DIGITS)),
            (Keys.Tokenizer.ADD_BOS, self.get(Keys.Tokenizer.ADD_BOS, False), (False,)),
            (Keys.Tokenizer.ADD_PREFIX, self.get(Keys.Tokenizer.ADD_PREFIX, False), (False,)),
            (Keys.Rope.DIMENSION_COUNT, self.get(Keys.Rope.DIMENSION_COUNT, self.head_size), (self.head_size,)),
        ):
            if found not in known:
                raise InputError(
                    f"found {found!r}, can convert {' or '.join(map(repr, known))} only",
                    file=str(self._file),
                    key=key.format(arch="llama"),
                )

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return int(self[Keys.Attention.HEAD_COUNT])

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        return int(self.get(Keys.Attention.HEAD_COUNT_KV, self.num_heads))

    @property
    def head_size(self) -> int:
        """Numbers of a head."""
        return int(self.get(Keys.Attention.KEY_LENGTH, self[Keys.LLM.EMBEDDING_LENGTH] // self.num_heads))

    @property
    def num_layers(self) -> int:
        """Layers."""
        return int(self[Keys.LLM.BLOCK_COUNT])

    def token_ids(self) -> dict[str, object]:
        """Return the ids of tokens with a role."""
        found = {f"{role}_id": self.get(key) for role, key in _ROLES.items() if role != "unk_token"}
        return {name: int(token) for name, token in found.items() if token is not None}

    def config(self, is_tied: bool) -> dict[str, object]:
        """Return config.json; `is_tied` tells whether the output layer is the embedding."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "dtype": "bfloat16",
            "head_dim": self.head_size,
            "hidden_act": "silu",
            "hidden_size": int(self[Keys.LLM.EMBEDDING_LENGTH]),
            "intermediate_size": int(self[Keys.LLM.FEED_FORWARD_LENGTH]),
            "max_position_embeddings": int(self[Keys.LLM.CONTEXT_LENGTH]),
            "mlp_bias": False,
            "num_attention_heads": self.num_heads,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.num_kv_heads,
            # The file holds float32, whose 1e-05 would print as 9.999999747378752e-06.
            "rms_norm_eps": float(np.float32(self[Keys.Attention.LAYERNORM_RMS_EPS]).astype(str)),
            "rope_theta": float(self.get(Keys.Rope.FREQ_BASE, 10000.0)),
            "tie_word_embeddings": is_tied,
            "vocab_size": len(self[Keys.Tokenizer.LIST]),
            **self.token_ids(),
        }

    def tokenizer(self) -> ByteTokenizer:
        """Return the vocabulary."""
        tokens: list[str] = self[Keys.Tokenizer.LIST]
        kinds: list[int] = self[Keys.Tokenizer.TOKEN_TYPE]
        merges = [tuple(merge.split(" ")) for merge in self[Keys.Tokenizer.MERGES]]
        roles = {role: self.get(key) for role, key in _ROLES.items()}
        return ByteTokenizer(
            tokens,
            [(first, second) for first, second in merges],
            [token for token, kind in enumerate(kinds) if kind == TokenType.CONTROL],
            {role: tokens[token] for role, token in roles.items() if token is not None},
            self.get(Keys.Tokenizer.CHAT_TEMPLATE),
            int(self[Keys.LLM.CONTEXT_LENGTH]),
            splits_digits=_SPLITS_DIGITS[self[Keys.Tokenizer.PRE]],
            added=[token for token, kind in enumerate(kinds) if kind == TokenType.USER_DEFINED],
        )


def _open(file: Path) -> Any:
    try:
        return GGUFReader(file)
    except FileNotFoundError as error:
        raise InputError("no such file", file=str(file)) from error
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise InputError(f"the file is no GGUF file, or is damaged: {error}", file=str(file)) from error


def _names(file: Path, tensors: Iterable[str], facts: _Facts) -> dict[str, str]:
    """Return the new name of each tensor; raises InputError when one is missing or unknown."""
    wanted = dict(_OUTER)
    for layer in range(facts.num_layers):
        wanted |= {f"blk.{layer}.{old}": f"model.layers.{layer}.{new}" for old, new in _LAYER.items()}
    found = set(tensors)
    missing = sorted(set(wanted) - found - {"output.weight"})
    unknown = sorted(found - set(wanted))
    if missing:
        raise InputError(f"tensor {missing[0]} is missing", file=str(file))
    if unknown:
        raise InputError(f"tensor {unknown[0]} isn't one of a plain Llama", file=str(file))
    return {old: new for old, new in wanted.items() if old in found}


def _weight(tensor: Any, facts: _Facts) -> torch.Tensor:
    """Return a tensor in float32, rows in Hugging Face's order."""
    weight = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
    shape = tuple(int(size) for size in reversed(tensor.shape))
    if weight.shape != shape:
        raise InputError(f"tensor {tensor.name} has shape {weight.shape}, expected {shape}")
    kind = tensor.name.split(".")[-2]
    if kind in ("attn_q", "attn_k"):
        weight = _halves(weight, facts.num_heads if kind == "attn_q" else facts.num_kv_heads)
    return torch.from_numpy(np.ascontiguousarray(weight))


def _halves(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Return the rows of a query or key projection in Hugging Face's order.

    Rotary positions turn pairs of numbers of a head. llama.cpp has the two of a pair side by side, so that row 2j + h
    of a head is half h of pair j; transformers has all first halves before all second ones, row h·n/2 + j.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)  # head, pair, half
    return pairs.swapaxes(1, 2).reshape(rows, columns)  # head, half, pair


def _check_shapes(file: Path, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    """Raise InputError when the keys say another size than the tensors have."""
    hidden, head = config["hidden_size"], config["head_dim"]
    for name, expected in (
        ("model.embed_tokens.weight", (config["vocab_size"], hidden)),
        ("model.layers.0.self_attn.q_proj.weight", (config["num_attention_heads"] * head, hidden)),
        ("model.layers.0.self_attn.k_proj.weight", (config["num_key_value_heads"] * head, hidden)),
        ("model.layers.0.mlp.up_proj.weight", (config["intermediate_size"], hidden)),
    ):
        found = tuple(weights[name].shape)
        if found != expected:
            raise InputError(f"{name} would have shape {found}, expected {expected}", file=str(file))
