"""What levels of a ladder take of the cards' memory together: weights of their pipelines, and KV beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slob_opt.cost import memory
from slob_opt.cost.build import CostOptions
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.placement import Pipeline, Stage

ACTIVATION_TOKENS = 2048
"""Tokens whose activations are kept free; vLLM's default of ``max_num_batched_tokens`` (0.6 and later)."""

KV_SHARE = 0.5
"""Least share of the KV memory it would have alone that a pipeline must keep beside others. Chosen: half of the
requests in flight at the same length."""


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Memory of a cluster's cards for a model.

    Attributes
    ----------
    cluster, model
        What is given.
    max_rows
        Most requests that hold KV in a pipeline; each has a row of logits.
    options
        Of the cost model.
    """

    cluster: Cluster
    model: ModelSpec
    max_rows: int
    options: CostOptions

    def weight_bytes(self, card: int, pipeline: Pipeline) -> int:
        """Return the bytes of weights that a card holds for a pipeline; 0 when it isn't part of it."""
        model, size = self.model, 0
        for stage in _stages(card, [pipeline]):
            degree = len(stage.cards)
            size += sum(memory.weight_bytes(model, layer, degree) for layer in model.layers[stage.first : stage.end])
            if stage.first == 0:
                size += memory.embedding_bytes(model, degree)
            if stage.end == model.num_layers:
                size += memory.head_weight_bytes(model, degree)
                if stage.first == 0:
                    size -= memory.tied_saving_bytes(model, degree)
        return size

    def kv_bytes(self, card: int, pipeline: Pipeline, blocks: int) -> int:
        """Return the bytes that a pipeline's KV pool of so many blocks takes on a card."""
        return blocks * sum(self._block_bytes(stage) for stage in _stages(card, [pipeline]))

    def _block_bytes(self, stage: Stage) -> int:
        layers = self.model.layers[stage.first : stage.end]
        return sum(memory.kv_bytes(self.model, one, self.options.block_tokens, len(stage.cards)) for one in layers)

    def room_bytes(self, card: int) -> int:
        """Return the bytes that a card has for weights and KV, whatever it computes."""
        room = int(self.cluster.devices[card].memory_bytes * self.options.memory_utilization)
        framework_bytes = memory.framework_bytes(self.cluster.devices[card], self.options.framework_bytes)
        room -= framework_bytes + memory.activation_bytes(self.model, ACTIVATION_TOKENS)
        return max(0, room - memory.logits_bytes(self.model, self.max_rows))

    def kv_blocks(self, pipeline: Pipeline, resident: Sequence[Pipeline]) -> int:
        """Return the KV blocks of a pipeline when some are resident, itself among them; a full card gives 0.

        What weights leave of a card is divided among its slices in equal parts. Slices that overlap are counted twice,
        as an engine holds them.
        """
        most: int | None = None
        for stage in pipeline.stages:
            for card in stage.cards:
                room = self.room_bytes(card) - sum(self.weight_bytes(card, other) for other in resident)
                fits = max(0, room) // len(_stages(card, resident)) // max(1, self._block_bytes(stage))
                most = fits if most is None else min(most, fits)
        assert most is not None
        return most

    def resident_sets(self, levels: Sequence[Sequence[Pipeline]]) -> tuple[tuple[int, ...], ...]:
        """Return sets of levels whose weights fit together, from the first level on, each as large as possible.

        A set fits when every pipeline keeps :data:`KV_SHARE` of the KV blocks that it has when only its own level is
        there. Only neighbours are joined: a rush goes through them in order.
        """
        alone = [{pipeline: self.kv_blocks(pipeline, level) for pipeline in level} for level in levels]
        found: list[tuple[int, ...]] = []
        for first in range(len(levels)):
            end = first + 1
            while end < len(levels) and self._fits(levels[first : end + 1], alone[first : end + 1]):
                end += 1
            candidate = tuple(range(first, end))
            if not found or not set(candidate) <= set(found[-1]):
                found.append(candidate)
        return tuple(found)

    def _fits(self, levels: Sequence[Sequence[Pipeline]], alone: Sequence[dict[Pipeline, int]]) -> bool:
        union = tuple(dict.fromkeys(pipeline for level in levels for pipeline in level))
        together = {pipeline: self.kv_blocks(pipeline, union) for pipeline in union}
        return all(
            together[pipeline] >= max(1, KV_SHARE * blocks) for level in alone for pipeline, blocks in level.items()
        )


def _stages(card: int, pipelines: Iterable[Pipeline]) -> list[Stage]:
    return [stage for pipeline in pipelines for stage in pipeline.stages if card in stage.cards]
