"""Layers of a model on one device: the part that a stage loads and computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from runtime import attention
from runtime.architectures import Architecture, architecture_of, read_config, windows_of
from runtime.checkpoint import Checkpoint
from runtime.kv_cache import KvCache
from runtime.packing import PackedBatch
from slob_opt.errors import InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Types of weights by name."""


class StageModel:
    """Layers ``[first, end)`` of a model, with the embedding before the first and the head behind the last one.

    Attributes
    ----------
    first, end
        Layers.
    num_layers
        Of the whole model.
    hidden_size, vocab_size
        Widths.
    weight_bytes
        Of what was loaded.
    device, dtype
        Where it is, and in which type.
    """

    def __init__(self, parts: nn.ModuleDict, config: Any, first: int, end: int, device: torch.device) -> None:
        self.first, self.end = first, end
        self.num_layers = int(config.num_hidden_layers)
        self.hidden_size, self.vocab_size = int(config.hidden_size), int(config.vocab_size)
        self._parts, self._config, self._kind = parts, config, architecture_of(config)
        self._step = attention.CurrentStep(windows_of(config))
        self.device = device
        self.dtype = next(parts.parameters()).dtype
        distinct = {id(parameter): parameter for parameter in parts.parameters()}
        self.weight_bytes = sum(one.numel() * one.element_size() for one in distinct.values())
        self._layers: list[nn.Module] = list(parts["layers"])
        for module in parts["layers"].modules():
            if hasattr(module, "layer_idx"):
                module.slob_step = self._step

    @classmethod
    def load(
        cls, folder: Path, first: int, end: int, *, device: str, dtype: str,
        progress: Callable[[int], None] | None = None,
    ) -> StageModel:  # fmt: skip
        """Return a stage with its weights, without having read any other.

        Parameters
        ----------
        folder
            Model in Hugging Face format.
        first, end
            Layers.
        device
            As torch names it.
        dtype
            One of :data:`DTYPES`.
        progress
            Takes the bytes of each tensor that was read; ``None`` tells nobody.

        Raises
        ------
        InputError
            When the folder isn't a model that can be served, a file is missing or damaged, or the layers aren't the
            model's.
        """
        if dtype not in DTYPES:
            raise InputError(f"found dtype {dtype!r}, expected one of {', '.join(DTYPES)}")
        config = read_config(folder)
        count = int(config.num_hidden_layers)
        if not 0 <= first < end <= count:
            raise InputError(f"layers [{first}, {end}) of a model with {count}", file=str(folder))
        attention.register()
        config._attn_implementation = attention.NAME
        kind = architecture_of(config)
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()
        base = getattr(whole, kind.base)
        parts = _parts(whole, base, kind, first, end, count)
        target = torch.device(device)
        _load(parts, _names(kind, first), Checkpoint(folder), config, DTYPES[dtype], target, progress or _nobody)
        _restore_buffers(parts, base, config, target)
        return cls(parts, config, first, end, target)

    def block_bytes(self, block_tokens: int) -> int:
        """Return the bytes of a KV block of this stage."""
        width = sum(heads * size for heads, size in self._shapes())
        return 2 * width * block_tokens * self.dtype.itemsize

    def _shapes(self) -> list[tuple[int, int]]:
        config = self._config
        heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        size = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        return [(heads, size)] * (self.end - self.first)

    def make_cache(self, num_blocks: int, block_tokens: int) -> KvCache:
        """Return an empty cache for this stage's layers."""
        return KvCache(self.first, self._shapes(), num_blocks, block_tokens, self.dtype, self.device)

    @torch.inference_mode()
    def forward(self, batch: PackedBatch, hidden: torch.Tensor | None, cache: KvCache) -> torch.Tensor:
        """Return what a stage makes of a step.

        Parameters
        ----------
        batch
            The step.
        hidden
            (T, hidden size) from the stage before; ``None`` on the first.
        cache
            Of this stage; gets the keys and values of the step.

        Returns
        -------
        torch.Tensor
            (T, hidden size) for the next stage; from the last one (E, vocabulary) logits of the rows that emit.
        """
        parts, kind = self._parts, self._kind
        if hidden is None:
            hidden = parts["embedding"](batch.tokens)
            if kind.positions is not None:
                hidden = hidden + parts["positions"](batch.positions)
        states = hidden[None]  # (1, T, hidden size)
        places = batch.positions[None]
        self._step.batch, self._step.cache = batch, cache
        shared: dict[str, Any] = {"position_ids": places}
        tables = self._rotary(states, places)
        for index, layer in enumerate(self._layers, self.first):
            if tables:
                shared["position_embeddings"] = (
                    tables[self._config.layer_types[index]] if kind.has_rotary_by_layer else tables[""]
                )
            states = layer(states, attention_mask=None, **shared)
            if isinstance(states, tuple):
                states = states[0]
        if self.end < self.num_layers:
            return states[0]
        rows = parts["norm"](states[0].index_select(0, batch.emitting))
        logits = parts["head"](rows)
        cap = getattr(self._config, "final_logit_softcapping", None)
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    def _rotary(self, states: torch.Tensor, places: torch.Tensor) -> dict[str, Any]:
        """Return cosines and sines by kind of layer; empty where positions are learned."""
        if "rotary" not in self._parts:
            return {}
        rotary = self._parts["rotary"]
        if not self._kind.has_rotary_by_layer:
            return {"": rotary(states, places)}
        return {kind: rotary(states, places, kind) for kind in set(self._config.layer_types[self.first : self.end])}


def _nobody(_: int) -> None:
    """Take the bytes of a tensor, and tell nobody."""


def _parts(whole: Any, base: Any, kind: Architecture, first: int, end: int, count: int) -> nn.ModuleDict:
    """Return the modules that a stage needs, still on the meta device."""
    parts = nn.ModuleDict({"layers": nn.ModuleList(list(getattr(base, kind.layers))[first:end])})
    if first == 0:
        parts["embedding"] = getattr(base, kind.embedding)
        if kind.positions is not None:
            parts["positions"] = getattr(base, kind.positions)
    if end == count:
        parts["norm"], parts["head"] = getattr(base, kind.norm), whole.lm_head
    return parts


def _names(kind: Architecture, first: int) -> Callable[[str], str]:
    """Return what turns a parameter's name in a stage into that of the checkpoint."""
    outer = {"embedding": kind.embedding, "positions": str(kind.positions), "norm": kind.norm}

    def name(local: str) -> str:
        part, _, rest = local.partition(".")
        if part == "layers":
            index, _, rest = rest.partition(".")
            return f"{kind.base}.{kind.layers}.{int(index) + first}.{rest}"
        if part == "head":
            return f"lm_head.{rest}"
        return f"{kind.base}.{outer[part]}.{rest}"

    return name


def _load(
    parts: nn.ModuleDict, name_of: Callable[[str], str], checkpoint: Checkpoint, config: Any, dtype: torch.dtype,
    device: torch.device, progress: Callable[[int], None],
) -> None:  # fmt: skip
    """Put the checkpoint's tensors in the place of a stage's parameters."""
    kind = architecture_of(config)
    tied = f"{kind.base}.{kind.embedding}.weight"
    is_tied = bool(getattr(config, "tie_word_embeddings", False))
    wanted: dict[str, list[tuple[nn.Module, str]]] = {}
    for local, module, leaf in _leaves(parts):
        full = name_of(local)
        names = [full, full.removeprefix(f"{kind.base}.")]
        if full == "lm_head.weight" and is_tied:
            names = [tied, tied.removeprefix(f"{kind.base}."), full]
        found = checkpoint.name_of(names)
        if found is None:
            raise InputError(f"tensor {full} is missing", file=str(checkpoint.folder))
        wanted.setdefault(found, []).append((module, leaf))

    def place(name: str) -> Callable[[torch.Tensor], None]:
        def put(tensor: torch.Tensor) -> None:
            loaded = nn.Parameter(tensor.to(device=device, dtype=dtype), requires_grad=False)
            for module, leaf in wanted[name]:
                expected = tuple(getattr(module, leaf).shape)
                if tuple(tensor.shape) != expected:
                    raise InputError(
                        f"tensor {name} has shape {tuple(tensor.shape)}, expected {expected}",
                        file=str(checkpoint.folder),
                    )
                setattr(module, leaf, loaded)

        return put

    checkpoint.read({name: place(name) for name in wanted}, str(device), progress)


def _leaves(parts: nn.ModuleDict) -> list[tuple[str, nn.Module, str]]:
    """Return name, module and own name of each parameter, shared ones as often as they are used."""
    found = []
    for path, module in parts.named_modules(remove_duplicate=False):
        for leaf, parameter in module.named_parameters(recurse=False):
            if parameter is not None:
                found.append((f"{path}.{leaf}", module, leaf))
    return found


def _restore_buffers(parts: nn.ModuleDict, base: Any, config: Any, device: torch.device) -> None:
    """Compute anew what modules hold beside their weights, and no file has."""
    rotary = getattr(base, "rotary_emb", None)
    if rotary is not None:
        parts["rotary"] = type(rotary)(config=config).to(device)
    for module in parts.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.device.type != "meta":
                continue
            if name != "embed_scale":
                raise InputError(f"{type(module).__name__} has a buffer {name} that the runtime doesn't know")
            scale = torch.tensor(module.scalar_embed_scale, device=device)
            setattr(module, name, scale)
