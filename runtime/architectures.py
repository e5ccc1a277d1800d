"""Which model architectures can be cut into stages, and what is special about each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slob_opt.errors import InputError


@dataclass(frozen=True, slots=True)
class Architecture:
    """How a model class of transformers is built.

    Attributes
    ----------
    base
        Name of the decoder inside the model.
    layers, embedding, norm
        Names of its parts.
    positions
        Name of a learned embedding of positions; ``None`` where layers rotate.
    has_rotary_by_layer
        Whether the rotary table depends on the kind of the layer.
    """

    base: str = "model"
    layers: str = "layers"
    embedding: str = "embed_tokens"
    norm: str = "norm"
    positions: str | None = None
    has_rotary_by_layer: bool = False


_USUAL = Architecture()

ARCHITECTURES = {
    "LlamaForCausalLM": _USUAL,
    "MistralForCausalLM": _USUAL,
    "Qwen2ForCausalLM": _USUAL,
    "Qwen3ForCausalLM": _USUAL,
    "Phi3ForCausalLM": _USUAL,
    "Olmo2ForCausalLM": _USUAL,
    "SmolLM3ForCausalLM": _USUAL,
    "StableLmForCausalLM": _USUAL,
    "Gemma2ForCausalLM": _USUAL,
    "Gemma3ForCausalLM": Architecture(has_rotary_by_layer=True),
    "GPT2LMHeadModel": Architecture("transformer", "h", "wte", "ln_f", "wpe"),
}
"""By the name that a checkpoint's config.json gives. SmolLM and SmolLM2 call themselves Llama."""


def read_config(folder: Path) -> Any:
    """Return transformers' configuration of a model folder.

    Raises
    ------
    InputError
        When there is no such folder or config.json, it isn't JSON, or the architecture can't be served.
    """
    from transformers import AutoConfig

    path = folder / "config.json"
    if not folder.is_dir():
        raise InputError("no such folder, expected a model in Hugging Face format", file=str(folder))
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError("no config.json there, expected a model in Hugging Face format", file=str(folder)) from error
    except ValueError as error:
        raise InputError(f"the file isn't JSON: {error}", file=str(path)) from error
    names = given.get("architectures") if isinstance(given, dict) else None
    name = names[0] if isinstance(names, list) and names else None
    if name not in ARCHITECTURES:
        raise InputError(
            f"found {name!r}, the runtime serves {', '.join(ARCHITECTURES)}", file=str(path), key="architectures"
        )
    if given.get("quantization_config"):
        raise InputError("the weights are quantized, expected plain safetensors", file=str(path),
                         key="quantization_config")  # fmt: skip
    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"transformers can't read it: {error}", file=str(path)) from error


def architecture_of(config: Any) -> Architecture:
    """Return how the model of a configuration is built."""
    return ARCHITECTURES[config.architectures[0]]


def windows_of(config: Any) -> tuple[int | None, ...]:
    """Return the attention window of each layer, tokens; ``None`` sees everything."""
    window = getattr(config, "sliding_window", None)
    count = int(config.num_hidden_layers)
    kinds = getattr(config, "layer_types", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return (None,) * count
    if kinds is None:
        return (int(window),) * count
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
