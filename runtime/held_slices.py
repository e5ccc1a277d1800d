"""The slices that one device holds: their layers, their KV, and how a step passes through one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from runtime.emulation import room_bytes
from runtime.executor import Emulation, SliceSpec
from runtime.kv_cache import KvCache
from runtime.packing import PackedBatch
from runtime.stage_model import StageModel
from runtime.steps import StepInput
from slob_opt.errors import EngineError, InputError


class HeldSlices:
    """All stages of one device, of whichever pipelines.

    Parameters
    ----------
    name
        Of the device, for messages.
    folder, dtype, block_tokens, max_step_tokens
        As in :class:`~runtime.executor.ExecutorSpec`.
    torch_device
        As torch names it.
    emulation
        Its memory caps what is loaded.
    """

    def __init__(
        self, name: str, torch_device: str, emulation: Emulation, folder: Path, dtype: str, block_tokens: int,
        max_step_tokens: int,
    ) -> None:  # fmt: skip
        self.name, self.device, self.emulation = name, torch.device(torch_device), emulation
        self._folder, self._dtype = folder, dtype
        self._block_tokens, self._max_step_tokens = block_tokens, max_step_tokens
        self._models: dict[tuple[int, int], StageModel] = {}
        self._caches: dict[tuple[int, int], KvCache] = {}
        self._batch: tuple[tuple[int, int], PackedBatch] | None = None

    def load(self, slices: Sequence[SliceSpec], progress: Callable[[str], None]) -> None:
        """Read the weights of further slices; raises what :meth:`StageModel.load` raises."""
        for piece in slices:
            progress(f"{self.name}: loading layers {piece.first}-{piece.end - 1} of pipeline {piece.pipeline}")
            try:
                self._models[piece.pipeline, piece.stage] = StageModel.load(
                    self._folder, piece.first, piece.end, device=str(self.device), dtype=self._dtype
                )
            except torch.OutOfMemoryError as error:
                raise InputError(
                    f"{self.name} has no memory for the weights of layers {piece.first}-{piece.end - 1}: {error}"
                ) from error

    def weight_bytes(self, piece: SliceSpec) -> int:
        """Return the bytes of a slice's weights."""
        return self._models[piece.pipeline, piece.stage].weight_bytes

    def block_room(self, slices: Sequence[SliceSpec]) -> list[int]:
        """Return for each of some slices without KV how many blocks fit, when they share what is left in equal parts.

        Raises
        ------
        InputError
            When the weights leave no room, with the numbers.
        """
        weights = sum(model.weight_bytes for model in self._models.values())
        held = sum(
            (cache.num_blocks + 1) * self._models[key].block_bytes(self._block_tokens)
            for key, cache in self._caches.items()
        )
        widest = max(self._models.values(), key=lambda model: model.hidden_size)
        # Activations of a whole step: residual stream, products of a feed-forward block some four times as wide.
        working = self._max_step_tokens * widest.hidden_size * 12 * widest.dtype.itemsize
        memory = room_bytes(self.device, self.emulation, already_used=weights + held)
        left = memory - weights - held - working
        found = []
        for piece in slices:
            block = self._models[piece.pipeline, piece.stage].block_bytes(self._block_tokens)
            blocks = left // len(slices) // block - 1
            if blocks < 1:
                raise InputError(
                    f"{self.name} has {memory / 2**20:,.0f} MiB; weights of {weights / 2**20:,.0f} MiB, KV of"
                    f" {held / 2**20:,.0f} MiB and {working / 2**20:,.0f} MiB to compute in leave no room for KV of"
                    f" layers {piece.first}-{piece.end - 1}"
                )
            found.append(int(blocks))
        return found

    def make_caches(self, blocks: Sequence[tuple[SliceSpec, int]]) -> None:
        """Take the KV of slices."""
        for piece, count in blocks:
            key = (piece.pipeline, piece.stage)
            self._caches[key] = self._models[key].make_cache(count, self._block_tokens)

    def drop(self, pipeline: int) -> None:
        """Free all slices of a pipeline."""
        for key in [key for key in self._models if key[0] == pipeline]:
            self._models.pop(key)
            self._caches.pop(key, None)
        self._batch = None

    def recover(self) -> None:
        """Let go of what a step that failed has left behind; slices and their KV stay."""
        self._batch = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def compute(self, pipeline: int, stage: int, step: StepInput, hidden: torch.Tensor | None) -> torch.Tensor:
        """Return what a slice makes of a step: hidden states, or logits from the last stage."""
        key = (pipeline, stage)
        model = self._models.get(key)
        if model is None:
            raise EngineError(f"{self.name} holds no stage {stage} of pipeline {pipeline}")
        if self._batch is None or self._batch[0] != (pipeline, step.step):
            self._batch = ((pipeline, step.step), PackedBatch.of(step, self._block_tokens, self.device))
        if hidden is not None:
            hidden = hidden.to(device=self.device, dtype=model.dtype)
        return model.forward(self._batch[1], hidden, self._caches[key])
