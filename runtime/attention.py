"""Attention of packed rows over a paged cache, as transformers' attention interface calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from runtime.kv_cache import KvCache
from runtime.packing import PackedBatch, RowGroup

NAME = "slob_paged"
"""Of the implementation, in a model's configuration."""


@dataclass(slots=True)
class CurrentStep:
    """What the attention modules of one stage compute now; not every architecture hands further arguments on to them.

    Attributes
    ----------
    windows
        Attention window of each layer of the model, tokens; ``None`` sees everything.
    batch, cache
        Of the step; ``None`` before the first one.
    """

    windows: tuple[int | None, ...]
    batch: PackedBatch | None = None
    cache: KvCache | None = None


def register() -> None:
    """Make the implementation known to transformers; may be called again."""
    AttentionInterface.register(NAME, paged_attention)


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return (1, T, heads, head size): each row's queries over its own keys, which are stored on the way.

    Parameters
    ----------
    module
        Attention module of a layer, with the stage's :class:`CurrentStep`.
    query, key, value
        (1, heads or key/value heads, T, head size), of the computed tokens.
    attention_mask
        Not used: who sees what follows from the batch.
    scaling, softcap
        Of the layer.
    sliding_window
        Not used: the step has the windows of all layers, since not every architecture hands its own on.
    """
    step: CurrentStep = module.slob_step
    batch, cache = step.batch, step.cache
    assert batch is not None
    assert cache is not None
    index = int(module.layer_idx)
    window = step.windows[index]
    keys, values = cache.layer(index)
    keys.index_copy_(0, batch.write, key[0].transpose(0, 1))  # (T, kv heads, head size)
    values.index_copy_(0, batch.write, value[0].transpose(0, 1))
    queries = query[0].transpose(0, 1)  # (T, heads, head size)
    out = torch.empty_like(queries) if len(batch.groups) > 1 else None
    for group in batch.groups:
        found = _attend(group, queries, keys, values, scaling, window, softcap)
        if out is None:
            return _in_order(found, group, queries)[None], None
        out.index_copy_(0, group.queries, found)
    assert out is not None
    return out[None], None


def _in_order(found: torch.Tensor, group: RowGroup, queries: torch.Tensor) -> torch.Tensor:
    """Put the results of a batch's only group in the order of its tokens."""
    out = torch.empty_like(queries)
    out.index_copy_(0, group.queries, found)
    return out


def _attend(
    group: RowGroup, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None,
    window: int | None, softcap: float | None,
) -> torch.Tensor:  # fmt: skip
    """Return (R * m, heads, head size) for one group."""
    rows, width, depth = group.num_rows, group.num_queries, group.num_keys
    heads, size = queries.shape[1], queries.shape[2]
    kv_heads = keys.shape[1]
    q = queries.index_select(0, group.queries).view(rows, width, heads, size).transpose(1, 2)  # (R, heads, m, size)
    k = keys.index_select(0, group.gather).view(rows, depth, kv_heads, size).transpose(1, 2)  # (R, kv heads, C, size)
    v = values.index_select(0, group.gather).view(rows, depth, kv_heads, -1).transpose(1, 2)
    sees_all = window is None or window >= depth
    if softcap is not None:
        found = _softcapped(q, k, v, group.mask(None if sees_all else window), scaling, softcap)
    elif width == 1:
        # All query heads of a key/value head read the same keys: they stand where the queries of a prompt would.
        mask = None if group.is_plain and sees_all else group.mask(None if sees_all else window)
        grouped = q.reshape(rows, kv_heads, heads // kv_heads, size)
        found = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scaling)
        found = found.reshape(rows, heads, 1, -1)
    elif group.is_causal and sees_all:
        found = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=kv_heads != heads)
    else:
        mask = group.mask(None if sees_all else window)
        found = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=kv_heads != heads)
    return found.transpose(1, 2).reshape(rows * width, heads, -1)


def _softcapped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scaling: float | None, softcap: float
) -> torch.Tensor:
    """Attention whose scores are bent by ``softcap * tanh(score / softcap)``, as Gemma-2 does."""
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(q, k.transpose(2, 3)) * scale  # (R, heads, m, C)
    scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.matmul(scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype), v)
