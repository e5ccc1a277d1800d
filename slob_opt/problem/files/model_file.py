"""Reading a model: a file of our own, or a published checkpoint's config.json."""

from __future__ import annotations

import dataclasses
import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

from slob_opt.errors import InputError
from slob_opt.problem.architecture import MAX_LAYERS, Architecture, ExpertShape, LatentShape, build_model
from slob_opt.problem.files.checking import check
from slob_opt.problem.files.checkpoint_config import model_from_config
from slob_opt.problem.files.documents import read_document, read_text
from slob_opt.problem.files.model_schema import LayerSchema, ModelSchema
from slob_opt.problem.model import LayerSpec, ModelSpec

_WIDTH_KEYS = (
    *("ffn_size", "is_gated", "norms_per_layer", "has_embedding_norm", "has_qkv_bias", "has_out_bias", "has_mlp_bias"),
    *("qk_norm", "learned_positions", "attention", "experts", "latent", "norm"),
)
_MAX_HEADER_BYTES = 100 * 2**20  # the format's own limit


def load_model(path: str | Path) -> ModelSpec:
    """Return the model in a file or a folder.

    A folder is that of a published checkpoint, with its ``config.json``; the number of layers in it is compared with
    the tensors when weights lie beside it. A file is such a ``config.json`` (it has ``model_type``) or one of our own
    (format: docs/files.md).

    Raises
    ------
    InputError
        With file, key, what was found and what was expected.
    """
    file = Path(path)
    folder = file if file.is_dir() else None
    if folder is not None:
        file = folder / "config.json"
        if not file.is_file():
            raise InputError("the folder has no config.json", file=str(folder))
    data = read_document(file)
    if folder is None and "model_type" not in data:
        return build_model_file(data, file=str(file), default_name=file.stem)
    name = (folder or file.parent).resolve().name if file.name == "config.json" else file.stem
    model = model_from_config(data, file=str(file), name=name)
    if folder is not None:
        _compare_layers(folder, model, str(file))
    return model


def build_model_file(data: dict[str, Any], *, file: str, default_name: str) -> ModelSpec:
    """Return the model in a document of our own format that was read already; as :func:`load_model`."""
    schema = check(ModelSchema, data, file=file)
    try:
        return _from_layers(schema, default_name) if schema.layers is not None else _from_widths(schema, default_name)
    except InputError as error:
        raise error.located(file=file) from error


def _windows(schema: ModelSchema) -> tuple[int | None, ...]:
    if schema.attention is None:
        return (None,)
    return tuple(schema.attention)


def _required(value: int | None, key: str) -> int:
    if value is None:
        raise InputError(f"the key {key!r} is missing; give all widths, or layers one by one", key=key)
    return value


def _from_widths(schema: ModelSchema, default_name: str) -> ModelSpec:
    for key in ("embedding", "head"):
        if getattr(schema, key) is not None:
            raise InputError("this size follows from the widths, expected it only together with layers", key=key)
    num_layers, num_heads = _required(schema.num_layers, "num_layers"), _required(schema.num_heads, "num_heads")
    head_dim = schema.head_dim
    if head_dim is None:
        if schema.hidden_size % num_heads:
            raise InputError(f"hidden_size {schema.hidden_size} / {num_heads} heads is not whole", key="head_dim")
        head_dim = schema.hidden_size // num_heads
    experts = schema.experts
    if experts is not None and any(index >= num_layers for index in experts.dense_layers):
        raise InputError(
            f"found {experts.dense_layers}, expected layers below {num_layers}", key="experts.dense_layers"
        )
    shape = Architecture(
        name=schema.name or default_name,
        hidden_size=schema.hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=schema.num_kv_heads if schema.num_kv_heads is not None else num_heads,
        head_dim=head_dim,
        ffn_size=_required(schema.ffn_size, "ffn_size"),
        vocab_size=schema.vocab_size,
        is_gated=schema.is_gated,
        has_tied_embeddings=schema.has_tied_embeddings,
        has_norm_bias=schema.norm == "layernorm",
        norms_per_layer=schema.norms_per_layer,
        has_embedding_norm=schema.has_embedding_norm,
        has_qkv_bias=schema.has_qkv_bias,
        has_out_bias=schema.has_out_bias,
        has_mlp_bias=schema.has_mlp_bias,
        qk_norm=schema.qk_norm,
        learned_positions=schema.learned_positions,
        window_pattern=_windows(schema),
        experts=None
        if experts is None
        else ExpertShape(**experts.model_dump(exclude={"dense_layers"}), dense_layers=tuple(experts.dense_layers)),
        latent=None if schema.latent is None else LatentShape(**schema.latent.model_dump()),
        weight_bits=schema.weight_bits,
        max_position=schema.max_position,
        sources=tuple(schema.sources),
        uncertain=tuple(schema.uncertain),
    )
    return dataclasses.replace(build_model(shape), kv_bits=schema.kv_bits, activation_bits=schema.activation_bits)


def _from_layers(schema: ModelSchema, default_name: str) -> ModelSpec:
    groups = schema.layers or []
    given = sorted(schema.model_fields_set & set(_WIDTH_KEYS))
    if given:
        raise InputError("this key describes widths, expected it only without layers", key=given[0])
    total = sum(group.count for group in groups)
    if schema.num_layers is not None and schema.num_layers != total:
        raise InputError(
            f"found {schema.num_layers}, expected {total}: the counts of layers add up to it", key="num_layers"
        )
    if total > MAX_LAYERS:
        raise InputError(f"found {total} layers, expected at most {MAX_LAYERS}", key="layers")
    layers: list[LayerSpec] = []
    for index, group in enumerate(groups):
        try:
            layers += [_layer(group, schema)] * group.count
        except InputError as error:
            raise error.located(key=f"layers[{index}]") from error
    ends = schema.vocab_size * schema.hidden_size
    return ModelSpec(
        name=schema.name or default_name,
        hidden_size=schema.hidden_size,
        vocab_size=schema.vocab_size,
        layers=tuple(layers),
        embedding_params=ends if schema.embedding is None else _params(schema.embedding, schema.weight_bits),
        head_params=ends if schema.head is None else _params(schema.head, schema.weight_bits),
        has_tied_embeddings=schema.has_tied_embeddings,
        weight_bits=schema.weight_bits,
        kv_bits=schema.kv_bits,
        activation_bits=schema.activation_bits,
        max_position=schema.max_position,
        sources=tuple(schema.sources),
        uncertain=tuple(schema.uncertain),
    )


def _params(size: int, bits: float) -> int:
    """Return how many weights of `bits` fit a size exactly or nearly; sizes are then given back by bits."""
    return int(size * 8 // bits)


def _layer(group: LayerSchema, schema: ModelSchema) -> LayerSpec:
    heads = group.num_heads or schema.num_heads or 1
    attention, mlp = group.attn_params, group.mlp_params
    if group.weights is None and (attention is None or mlp is None):
        raise InputError("a layer needs weights (a size), or attn_params and mlp_params")
    if attention is None and mlp is None and group.weights is not None:
        attention, mlp = 0, _params(group.weights, schema.weight_bits)
    return LayerSpec(
        attn_params=attention or 0,
        mlp_params=mlp or 0,
        num_heads=heads,
        num_kv_heads=group.num_kv_heads or schema.num_kv_heads or heads,
        head_dim=group.head_dim or schema.head_dim or max(1, schema.hidden_size // heads),
        active_mlp_params=group.active_mlp_params,
        window_tokens=group.window,
        weight_bytes=group.weights,
        kv_bytes_per_token=group.kv_per_token,
    )


def _compare_layers(folder: Path, model: ModelSpec, file: str) -> None:
    """Raise InputError when the tensors beside a config.json are those of another number of layers."""
    names = _tensor_names(folder)
    found = {number for name in names if (number := _layer_number(name)) is not None}
    if found and len(found) != model.num_layers:
        raise InputError(
            f"config.json says {model.num_layers} layers, the weights have tensors of {len(found)}", file=file
        )


def _tensor_names(folder: Path) -> list[str]:
    """Return the names of all tensors of a checkpoint from its index or its one file's header; empty without them."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    try:
        if index.is_file():
            return list(json.loads(read_text(index))["weight_map"])
        if single.is_file():
            with single.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                if length > _MAX_HEADER_BYTES:
                    raise InputError("the header is too long, the file is damaged", file=str(single))
                return [name for name in json.loads(stream.read(length)) if name != "__metadata__"]
    except (json.JSONDecodeError, UnicodeDecodeError, struct.error, KeyError, TypeError, OSError) as error:
        damaged = index if index.is_file() else single
        raise InputError(f"the list of tensors can't be read: {error}", file=str(damaged)) from error
    return []


def _layer_number(name: str) -> int | None:
    """Return the layer of a tensor, from ``model.layers.3.mlp.up_proj.weight``, ``h.3.attn...`` and the like."""
    parts = name.split(".")
    for before, part in pairwise(parts):
        if before in ("layers", "h", "blocks") and part.isdigit():
            return int(part)
    return None
