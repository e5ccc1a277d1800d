"""Drawing the next tokens from logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from runtime.steps import IntArray, RowLogprobs, RowSampling


def sample(logits: torch.Tensor, rows: Sequence[RowSampling]) -> tuple[IntArray, tuple[RowLogprobs | None, ...]]:
    """Return the new token of each row, and log-probabilities where they were asked for.

    Parameters
    ----------
    logits
        (E, V), of any float type on any device.
    rows
        How each is drawn.

    Notes
    -----
    A draw takes one uniform number that follows from seed and position alone, and inverts the distribution in falling
    order of probability, so that a row's token doesn't depend on others in the batch.
    """
    if not rows:
        return np.zeros(0, np.int64), ()
    tokens = logits.argmax(dim=-1).cpu().numpy().astype(np.int64)
    drawn = [index for index, row in enumerate(rows) if row.temperature > 0]
    if drawn:
        tokens = tokens.copy()
        tokens[drawn] = _draw(logits[drawn].float(), [rows[index] for index in drawn])
    told: list[RowLogprobs | None] = [None] * len(rows)
    asked = [index for index, row in enumerate(rows) if row.num_logprobs is not None]
    if asked:
        found = logits[asked].float().log_softmax(dim=-1).cpu()
        for place, index in enumerate(asked):
            told[index] = _told(found[place], int(tokens[index]), rows[index].num_logprobs or 0)
    return tokens, tuple(told)


def _told(logprobs: torch.Tensor, token: int, count: int) -> RowLogprobs:
    best = torch.topk(logprobs, min(count, logprobs.numel())) if count else None
    chosen = float(logprobs[token])
    if best is None:
        return RowLogprobs(chosen)
    return RowLogprobs(chosen, tuple(best.indices.tolist()), tuple(best.values.tolist()))


def _draw(logits: torch.Tensor, rows: Sequence[RowSampling]) -> IntArray:
    """Return (N,) tokens of rows that aren't greedy; `logits` is (N, V) float32."""
    temperature = torch.tensor([row.temperature for row in rows], device=logits.device)
    chance = torch.softmax(logits / temperature[:, None].clamp_min(1e-6), dim=-1)
    chance, order = torch.sort(chance, dim=-1, descending=True, stable=True)
    total = chance.cumsum(dim=-1)
    top_p = torch.tensor([row.top_p for row in rows], device=logits.device)
    top_k = torch.tensor([row.top_k or logits.shape[1] for row in rows], device=logits.device)
    rank = torch.arange(logits.shape[1], device=logits.device)
    # Kept is what the probability before it doesn't yet make up top_p, so the best one always is.
    kept = (total - chance < top_p[:, None]) & (rank < top_k[:, None])
    total = (chance * kept).double().cumsum(dim=-1)
    uniform = torch.tensor([_uniform(row) for row in rows], dtype=torch.float64, device=logits.device)
    place = torch.searchsorted(total, (uniform * total[:, -1])[:, None], right=True)[:, 0]
    place = torch.minimum(place, kept.sum(dim=-1) - 1)
    found = order.gather(1, place[:, None])[:, 0].cpu().numpy()
    return np.asarray(found, np.int64)


def _uniform(row: RowSampling) -> float:
    """Return a number in [0, 1) that follows from seed and position."""
    generator = np.random.Generator(np.random.Philox(key=row.seed % (1 << 64), counter=row.position))
    return float(generator.random())
