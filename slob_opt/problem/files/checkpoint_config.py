"""From the config.json of a published checkpoint (Hugging Face format) to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from slob_opt.errors import InputError
from slob_opt.problem.architecture import MAX_LAYERS, Architecture, ExpertShape, LatentShape, build_model
from slob_opt.problem.files.config_keys import ConfigKeys
from slob_opt.problem.model import ModelSpec

_TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3_text", "gpt2", "opt", "bloom", "starcoder2", "smollm3")
"""Types whose configuration class ties embedding and head unless the file says otherwise."""

_GEMMA3_DEFAULTS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208}
"""Published multimodal Gemma-3 files leave these to the configuration class (transformers, Gemma3TextConfig)."""

_QUANTISED_BITS = {"fp8": 8.0, "mxfp4": 4.25, "int8": 8.0}
"""Bits per weight of quantisation methods that don't write them; MXFP4 has one 8-bit scale for 32 weights."""


def model_from_config(data: Mapping[str, Any], *, file: str, name: str) -> ModelSpec:
    """Return the model that a config.json describes.

    Weights are taken as 16 bits unless the file tells its quantisation.

    Raises
    ------
    InputError
        When the type is not known (the nearest is named), or a width is missing or no whole number from 1.
    """
    try:
        return build_model(_architecture(data, name))
    except InputError as error:
        raise error.located(file=file) from error


def known_types() -> tuple[str, ...]:
    """Return the ``model_type`` values that can be read."""
    return tuple(sorted(_READERS))


def _architecture(data: Mapping[str, Any], name: str) -> Architecture:
    outer, inner = ConfigKeys(data), ConfigKeys(data).mapping("text_config")
    kind = outer.text("model_type")
    if inner is not None:  # a multimodal checkpoint; the language model is the inner one
        data = {**data, **inner}
        kind = ConfigKeys(inner).text("model_type") or f"{kind}_text"
    if kind is None:
        raise InputError("the key 'model_type' is missing", key="model_type")
    if kind not in _READERS:
        near = get_close_matches(kind, list(_READERS), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known_types())}"
        text = f"model type {kind!r} can't be read, write a model file (docs/files.md); {hint}"
        raise InputError(text, key="model_type")
    if kind == "gemma3_text":
        data = {**_GEMMA3_DEFAULTS, **{k: v for k, v in data.items() if v is not None}}
    config = ConfigKeys(data)
    bits, uncertain = _weight_bits(config)
    fields: dict[str, Any] = {
        "name": name,
        "vocab_size": config.whole("vocab_size", "padded_vocab_size"),
        "has_tied_embeddings": config.flag("tie_word_embeddings", kind in _TIED_BY_DEFAULT),
        "max_position": config.whole("max_position_embeddings", "n_positions", "seq_length", default=0) or None,
        "weight_bits": bits,
        "sources": (f"config.json of {name}",),
        "uncertain": uncertain,
    }
    return Architecture(**fields | _READERS[kind](config))


def _weight_bits(config: ConfigKeys) -> tuple[float, tuple[str, ...]]:
    """Return bits per weight, and what is uncertain about them."""
    plan = config.mapping("quantization_config")
    if plan is None:
        return 16.0, ()
    inner = ConfigKeys(plan)
    bits: float | None = inner.optional("bits") or inner.optional("w_bit")
    if bits is None and inner.flag("load_in_4bit", False):
        bits = 4.0
    if bits is None and inner.flag("load_in_8bit", False):
        bits = 8.0
    if bits is None:
        bits = _QUANTISED_BITS.get(inner.text("quant_method") or "")
    if bits is None:
        return 16.0, ("weight_bits: the quantisation method is not known here, 16 taken",)
    return float(bits), (f"weight_bits: {bits:g} for all weights; scales and unquantised parts are not counted",)


def _widths(config: ConfigKeys) -> dict[str, Any]:
    """Return the widths by the names that most types use."""
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    return {
        "hidden_size": hidden,
        "num_layers": config.whole("num_hidden_layers", most=MAX_LAYERS),
        "num_heads": heads,
        "num_kv_heads": config.whole("num_key_value_heads", default=heads),
        "head_dim": config.whole("head_dim", default=_share(hidden, heads)),
        "ffn_size": config.whole("intermediate_size"),
    }


def _share(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise InputError(f"hidden_size {hidden} / {heads} heads is not whole", key="head_dim")
    return hidden // heads


def _windows(config: ConfigKeys, num_layers: int, usual: tuple[int | None, ...]) -> dict[str, Any]:
    """Return the windows by ``layer_types`` where the file has them, else the usual ones of the type."""
    kinds = config.items("layer_types")
    if kinds is None:
        return {"window_pattern": usual}
    if len(kinds) != num_layers:
        raise InputError(f"found {len(kinds)} entries, expected {num_layers} as num_hidden_layers", key="layer_types")
    window = config.optional("sliding_window")
    if "sliding_attention" in kinds and window is None:
        raise InputError("layer_types has sliding attention, but the window is missing", key="sliding_window")
    return {"window_pattern": tuple(window if kind == "sliding_attention" else None for kind in kinds)}


def _llama(config: ConfigKeys) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    widths = _widths(config)
    return {
        **widths,
        **_windows(config, widths["num_layers"], (None,)),
        "has_qkv_bias": bias,
        "has_out_bias": bias,
        "has_mlp_bias": config.flag("mlp_bias", False),
    }


def _sliding(config: ConfigKeys) -> dict[str, Any]:
    """Mistral, Phi-3: one window for all layers, or none."""
    widths = _widths(config)
    return widths | _windows(config, widths["num_layers"], (config.optional("sliding_window"),))


def _qwen2(config: ConfigKeys) -> dict[str, Any]:
    widths = _widths(config)
    num_layers = widths["num_layers"]
    usual: tuple[int | None, ...] = (None,)
    if config.flag("use_sliding_window", False):
        full = min(config.whole("max_window_layers", default=num_layers), num_layers)
        usual = (None,) * full + (config.optional("sliding_window"),) * (num_layers - full)
    return widths | _windows(config, num_layers, usual) | {"has_qkv_bias": True}


def _qwen3(config: ConfigKeys) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    return _qwen2(config) | {"has_qkv_bias": bias, "has_out_bias": bias, "qk_norm": "head"}


def _gemma(config: ConfigKeys) -> dict[str, Any]:
    return _llama(config)


def _gemma2(config: ConfigKeys) -> dict[str, Any]:
    """Every other layer, from the first, has a window (transformers, Gemma2Config)."""
    widths = _widths(config)
    usual = (config.whole("sliding_window", default=4096), None)
    return widths | _windows(config, widths["num_layers"], usual) | {"norms_per_layer": 4}


def _gemma3(config: ConfigKeys) -> dict[str, Any]:
    """Five layers of six have a window (transformers, Gemma3TextConfig)."""
    widths = _widths(config)
    period = config.whole("sliding_window_pattern", "_sliding_window_pattern", default=6, most=MAX_LAYERS)
    usual = (config.whole("sliding_window", default=4096),) * (period - 1) + (None,)
    windows = _windows(config, widths["num_layers"], usual[: widths["num_layers"]])
    return widths | windows | {"norms_per_layer": 4, "qk_norm": "head"}


def _olmo2(config: ConfigKeys) -> dict[str, Any]:
    return _llama(config) | {"qk_norm": "width"}


def _stablelm(config: ConfigKeys) -> dict[str, Any]:
    if config.flag("qk_layernorm", False):
        raise InputError("StableLM with qk_layernorm can't be read, write a model file", key="qk_layernorm")
    parallel = config.flag("use_parallel_residual", False)
    has_bias = config.flag("use_qkv_bias", False)
    return _widths(config) | {"has_norm_bias": True, "norms_per_layer": 1 if parallel else 2, "has_qkv_bias": has_bias}


def _biased(has_bias: bool) -> dict[str, Any]:
    return {
        "has_norm_bias": True,
        "is_gated": False,
        **dict.fromkeys(("has_qkv_bias", "has_out_bias", "has_mlp_bias"), has_bias),
    }


def _starcoder2(config: ConfigKeys) -> dict[str, Any]:
    return _sliding(config) | _biased(config.flag("use_bias", True))


def _gpt2(config: ConfigKeys) -> dict[str, Any]:
    hidden, heads = config.whole("n_embd", "hidden_size"), config.whole("n_head", "num_attention_heads")
    return {
        "hidden_size": hidden,
        "num_layers": config.whole("n_layer", "num_hidden_layers", most=MAX_LAYERS),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": _share(hidden, heads),
        "ffn_size": config.whole("n_inner", default=4 * hidden),
        "learned_positions": config.whole("n_positions", "max_position_embeddings"),
        **_biased(True),
    }


def _opt(config: ConfigKeys) -> dict[str, Any]:
    """Two extra rows in the position table; the 350M variant projects its embedding and is refused."""
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    if config.whole("word_embed_proj_dim", default=hidden) != hidden:
        raise InputError("OPT with a projected embedding can't be read, write a model file", key="word_embed_proj_dim")
    return {
        "hidden_size": hidden,
        "num_layers": config.whole("num_hidden_layers", most=MAX_LAYERS),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": _share(hidden, heads),
        "ffn_size": config.whole("ffn_dim"),
        "learned_positions": config.whole("max_position_embeddings") + 2,
        "has_final_norm": config.flag("do_layer_norm_before", True),
        **_biased(config.flag("enable_bias", True)),
    }


def _bloom(config: ConfigKeys) -> dict[str, Any]:
    hidden = config.whole("hidden_size", "n_embed")
    heads = config.whole("n_head", "num_attention_heads")
    return {
        "hidden_size": hidden,
        "num_layers": config.whole("n_layer", "num_hidden_layers", most=MAX_LAYERS),
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": _share(hidden, heads),
        "ffn_size": 4 * hidden,
        "has_embedding_norm": True,
        **_biased(True),
    }


def _chatglm(config: ConfigKeys) -> dict[str, Any]:
    heads = config.whole("num_attention_heads")
    grouped = config.flag("multi_query_attention", False)
    return {
        "hidden_size": config.whole("hidden_size"),
        "num_layers": config.whole("num_layers", most=MAX_LAYERS),
        "num_heads": heads,
        "num_kv_heads": config.whole("multi_query_group_num") if grouped else heads,
        "head_dim": config.whole("kv_channels"),
        "ffn_size": config.whole("ffn_hidden_size"),
        "has_qkv_bias": config.flag("add_qkv_bias", False),
    }


def _dense_layers(config: ConfigKeys, num_layers: int) -> tuple[int, ...]:
    """Return the dense layers of a Qwen mixture: the listed ones, and those that the step leaves out."""
    listed = config.items("mlp_only_layers") or []
    step = config.whole("decoder_sparse_step", default=1)
    return tuple(i for i in range(num_layers) if i in listed or (i + 1) % step)


def _mixtral(config: ConfigKeys) -> dict[str, Any]:
    experts = ExpertShape(
        num_experts=config.whole("num_local_experts"),
        top_k=config.whole("num_experts_per_tok"),
        expert_ffn_size=config.whole("intermediate_size"),
    )
    return _sliding(config) | {"experts": experts}


def _qwen_experts(config: ConfigKeys, num_layers: int, shared_ffn_size: int) -> ExpertShape:
    return ExpertShape(
        num_experts=config.whole("num_experts"),
        top_k=config.whole("num_experts_per_tok"),
        expert_ffn_size=config.whole("moe_intermediate_size"),
        shared_ffn_size=shared_ffn_size,
        has_shared_gate=shared_ffn_size > 0,
        dense_layers=_dense_layers(config, num_layers),
    )


def _qwen2_moe(config: ConfigKeys) -> dict[str, Any]:
    base = _qwen2(config)
    shared = config.whole("shared_expert_intermediate_size")
    return base | {
        "has_qkv_bias": config.flag("qkv_bias", True),
        "experts": _qwen_experts(config, base["num_layers"], shared),
    }


def _qwen3_moe(config: ConfigKeys) -> dict[str, Any]:
    base = _qwen3(config)
    return base | {"experts": _qwen_experts(config, base["num_layers"], 0)}


def _deepseek_v2(config: ConfigKeys) -> dict[str, Any]:
    heads, num_layers = config.whole("num_attention_heads"), config.whole("num_hidden_layers", most=MAX_LAYERS)
    latent = LatentShape(
        kv_lora_rank=config.whole("kv_lora_rank"),
        qk_rope_head_dim=config.whole("qk_rope_head_dim"),
        qk_nope_head_dim=config.whole("qk_nope_head_dim"),
        v_head_dim=config.whole("v_head_dim"),
        q_lora_rank=config.optional("q_lora_rank"),
    )
    if config.whole("moe_layer_freq", default=1) != 1:
        raise InputError("expert layers that alternate can't be read, write a model file", key="moe_layer_freq")
    expert = config.whole("moe_intermediate_size")
    experts = ExpertShape(
        num_experts=config.whole("n_routed_experts"),
        top_k=config.whole("num_experts_per_tok"),
        expert_ffn_size=expert,
        shared_ffn_size=(config.optional("n_shared_experts") or 0) * expert,
        dense_layers=tuple(range(min(config.optional("first_k_dense_replace") or 0, num_layers))),
    )
    return {
        "hidden_size": config.whole("hidden_size"),
        "num_layers": num_layers,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": latent.qk_nope_head_dim + latent.qk_rope_head_dim,
        "ffn_size": config.whole("intermediate_size"),
        "experts": experts,
        "latent": latent,
    }


_READERS: Mapping[str, Callable[[ConfigKeys], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _sliding,
    "phi3": _sliding,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "olmo2": _olmo2,
    "stablelm": _stablelm,
    "smollm3": _llama,
    "starcoder2": _starcoder2,
    "gpt2": _gpt2,
    "opt": _opt,
    "bloom": _bloom,
    "chatglm": _chatglm,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek_v2,
}
