"""A tiny random Llama with a tokenizer, made in a blink: the real thing in every respect but sense.

Its answers are printable ASCII, so that a terminal survives them, and it has a chat template.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from runtime.byte_tokenizer import ByteTokenizer, write_json
from runtime.model_folder import Provenance, is_whole, new_folder, read_provenance
from runtime.token_pieces import byte_letters
from slob_opt.errors import InputError

FORMAT = 1
"""Version of what is written; a folder of another one is made anew."""

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""The first ids: beginning and padding, and the ends of a message."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_PAIRS = (
    " t", " a", " s", " o", " w", " i", " c", " b", "th", "he", "in", "er", "an", "re", "on", "at",
    "en", "nd", "ti", "es", "or", "te", "of", "ed", "is", "it", "al", "ar", "st", "to", "nt", "ng",
    "se", "ha", "as", "ou", "io", "le", "ve", "co", "me", "de", "hi", "ri", "ro", "ic", "ne", "ea",
    "ra", "ce", "li", "ch", "ll", "be", "ma", "si", "om", "ur", "ca", "el", "ta",
)  # fmt: skip
"""Pairs of letters that stand together often in English, one token each; chosen, so that tokens differ in length."""


@dataclass(frozen=True, slots=True)
class TinyModel:
    """Sizes of a tiny model.

    Attributes
    ----------
    num_layers, hidden_size, num_heads, num_kv_heads, ffn_size
        As in a Llama.
    vocab_size
        At least the 256 bytes and three special tokens; as many pairs of letters as there are, then ids that the
        tokenizer doesn't know.
    max_position
        Longest sequence, tokens.
    seed
        Of the weights.
    """

    num_layers: int = 6
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    ffn_size: int = 128
    vocab_size: int = 320
    max_position: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError when sizes don't fit each other."""
        least = len(SPECIAL) + 256
        if self.vocab_size < least:
            raise InputError(f"found {self.vocab_size}, expected at least {least}", key="vocab_size")
        if self.num_heads < 1 or self.hidden_size % (2 * self.num_heads):
            raise InputError(f"found {self.hidden_size}, expected a multiple of 2 × num_heads", key="hidden_size")
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise InputError(f"found {self.num_kv_heads}, expected a divisor of num_heads", key="num_kv_heads")
        if min(self.num_layers, self.ffn_size, self.max_position) < 1:
            raise InputError("num_layers, ffn_size and max_position must be at least 1")

    @property
    def head_size(self) -> int:
        """Numbers of a head."""
        return self.hidden_size // self.num_heads


def write_tiny_model(folder: Path, model: TinyModel | None = None) -> Path:
    """Write a tiny model as a Hugging Face folder, the same bytes for the same sizes and seed; return the folder.

    Parameters
    ----------
    folder
        Where to.
    model
        Sizes; ``None`` takes the usual ones.

    Notes
    -----
    One that is there already, whole and of the same sizes, stays; another one is replaced. A reader never sees half a
    model, and several processes may do this at once.
    """
    model = TinyModel() if model is None else model
    provenance = Provenance(
        name="tiny-llama",
        source=f"random weights, {', '.join(f'{key} {value}' for key, value in asdict(model).items())}",
        licence="Apache-2.0",
        format=FORMAT,
    )
    if is_whole(folder) and read_provenance(folder) == provenance:
        return folder
    with new_folder(folder) as place:
        _tokenizer(model).write(place)
        write_json(place / "config.json", _config(model))
        write_json(place / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0})
        save_file(_weights(model), place / "model.safetensors", metadata={"format": "pt"})
        provenance.write(place)
    return folder


def _tokenizer(model: TinyModel) -> ByteTokenizer:
    letters = byte_letters()
    room = model.vocab_size - len(SPECIAL) - len(letters)
    merges = [(letters[ord(pair[0])], pair[1]) for pair in _PAIRS[:room]]
    tokens = [*SPECIAL, *letters.values(), *(a + b for a, b in merges)]
    roles = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[2], "pad_token": SPECIAL[0]}
    return ByteTokenizer(tokens, merges, range(len(SPECIAL)), roles, CHAT_TEMPLATE, model.max_position)


def _config(model: TinyModel) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": 0,
        "dtype": "float32",
        "eos_token_id": 2,
        "head_dim": model.head_size,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": model.ffn_size,
        "max_position_embeddings": model.max_position,
        "mlp_bias": False,
        "num_attention_heads": model.num_heads,
        "num_hidden_layers": model.num_layers,
        "num_key_value_heads": model.num_kv_heads,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": model.vocab_size,
    }


def _weights(model: TinyModel) -> dict[str, NDArray[np.float32]]:
    """Random float32 weights by name, under which printable tokens always win.

    The first number of every hidden state is large and positive, and no layer changes that: its rows in what a layer
    adds are zero. In the output layer it counts against all tokens that aren't printable.
    """
    rng = np.random.default_rng(model.seed)
    hidden, heads, kv = model.hidden_size, model.num_heads * model.head_size, model.num_kv_heads * model.head_size

    def drawn(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
        return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(gain / columns**0.5)

    def adding(columns: int) -> NDArray[np.float32]:
        found = drawn(hidden, columns)
        found[0] = 0
        return found

    ones = np.ones(hidden, np.float32)
    embedding = drawn(model.vocab_size, hidden, hidden**0.5)
    embedding[:, 0] = 2.0
    output = drawn(model.vocab_size, hidden, 4.0)
    output[:, 0] = np.where(_is_printable(model), 0.0, -60.0)
    found = {"model.embed_tokens.weight": embedding, "model.norm.weight": ones, "lm_head.weight": output}
    for layer in range(model.num_layers):
        prefix = f"model.layers.{layer}."
        found |= {
            f"{prefix}input_layernorm.weight": ones.copy(),
            f"{prefix}self_attn.q_proj.weight": drawn(heads, hidden),
            f"{prefix}self_attn.k_proj.weight": drawn(kv, hidden),
            f"{prefix}self_attn.v_proj.weight": drawn(kv, hidden),
            f"{prefix}self_attn.o_proj.weight": adding(heads),
            f"{prefix}post_attention_layernorm.weight": ones.copy(),
            f"{prefix}mlp.gate_proj.weight": drawn(model.ffn_size, hidden),
            f"{prefix}mlp.up_proj.weight": drawn(model.ffn_size, hidden),
            f"{prefix}mlp.down_proj.weight": adding(model.ffn_size),
        }
    return found


def _is_printable(model: TinyModel) -> NDArray[np.bool_]:
    """(vocab_size,) bool, whether a token is printable ASCII."""
    found = np.zeros(model.vocab_size, bool)
    space = byte_letters()[0x20]
    for index, token in enumerate(_tokenizer(model).tokens):
        text = token.replace(space, " ")
        found[index] = index >= len(SPECIAL) and text.isascii() and text.isprintable()
    return found
