"""What is chosen: stages, pipelines, placements."""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.errors import InputError


@dataclass(frozen=True, slots=True)
class Stage:
    """Contiguous layers ``[first, end)`` on one card or on a tensor-parallel group of cards.

    Attributes
    ----------
    cards
        Indices into ``Cluster.devices``; more than one is a tensor-parallel group of one node.
    first, end
        Half-open range of layers that the stage executes.
    """

    cards: tuple[int, ...]
    first: int
    end: int

    def __post_init__(self) -> None:
        if not self.cards or len(set(self.cards)) != len(self.cards) or min(self.cards) < 0:
            raise InputError(f"cards of a stage are {self.cards}, expected distinct device indices")
        if not 0 <= self.first < self.end:
            raise InputError(f"stage layers [{self.first}, {self.end}), expected 0 <= first < end")

    @property
    def num_layers(self) -> int:
        """Number of layers that the stage executes."""
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class Pipeline:
    """An ordered tuple of stages that together execute every layer once.

    Attributes
    ----------
    stages
        In execution order; the first starts at layer 0.
    num_micro_batches
        K, the micro-batches in flight.
    batch_size
        b, the sequences (decode tokens) of one micro-batch.
    """

    stages: tuple[Stage, ...]
    num_micro_batches: int = 1
    batch_size: int = 1

    def __post_init__(self) -> None:
        if not self.stages:
            raise InputError("a pipeline needs at least one stage")
        if self.stages[0].first != 0:
            raise InputError(f"the first stage starts at layer {self.stages[0].first}, expected 0")
        for before, after in zip(self.stages, self.stages[1:], strict=False):
            if before.end != after.first:
                raise InputError(f"a stage ends at layer {before.end} and the next starts at {after.first}")
        if self.num_micro_batches < 1 or self.batch_size < 1:
            raise InputError("num_micro_batches and batch_size start at 1")

    @property
    def cards(self) -> tuple[int, ...]:
        """All cards, in stage order."""
        return tuple(c for s in self.stages for c in s.cards)

    @property
    def num_layers(self) -> int:
        """Number of layers that the pipeline executes."""
        return self.stages[-1].end

    @property
    def num_in_flight(self) -> int:
        """Sequences in flight, K times b."""
        return self.num_micro_batches * self.batch_size


@dataclass(frozen=True, slots=True)
class Placement:
    """A set of pipelines; they may share cards, a card then holds the union of its slices.

    Attributes
    ----------
    pipelines
        At least one.
    """

    pipelines: tuple[Pipeline, ...]

    def __post_init__(self) -> None:
        if not self.pipelines:
            raise InputError("a placement needs at least one pipeline")
        lengths = {p.num_layers for p in self.pipelines}
        if len(lengths) > 1:
            raise InputError(f"pipelines execute {sorted(lengths)} layers, expected the same number")

    @property
    def used_cards(self) -> frozenset[int]:
        """Cards that hold weights."""
        return frozenset(c for p in self.pipelines for c in p.cards)

    @property
    def has_disjoint_pipelines(self) -> bool:
        """Whether no card serves two stages."""
        return sum(len(p.cards) for p in self.pipelines) == len(self.used_cards)
