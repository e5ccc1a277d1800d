"""Keys and values of one stage, in blocks."""

from __future__ import annotations

import torch


class KvCache:
    """Keys and values of the layers ``[first, end)`` of a model, for all requests of one pipeline.

    The first block is one more than was asked for and takes what the pads of rectangles write.

    Parameters
    ----------
    first
        First layer.
    shapes
        Of each layer: key/value heads and their size.
    num_blocks, block_tokens
        Size of the pool.
    dtype, device
        Of the tensors.

    Attributes
    ----------
    num_blocks, block_tokens
        As given.
    """

    def __init__(
        self, first: int, shapes: list[tuple[int, int]], num_blocks: int, block_tokens: int, dtype: torch.dtype,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        self._first = first
        size = (num_blocks + 1) * block_tokens
        self._layers = [
            tuple(torch.zeros(size, heads, width, dtype=dtype, device=device) for _ in range(2))
            for heads, width in shapes
        ]

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a layer, each (tokens, key/value heads, head size), tokens in order of blocks."""
        keys, values = self._layers[index - self._first]
        return keys, values
