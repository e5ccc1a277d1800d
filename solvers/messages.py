"""What passes between a planner and the process that runs its solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from slob_opt.planning.instance import PlacementInstance
from slob_opt.problem.placement import Placement
from solvers.backend import BackendAnswer, BackendLimits, Ending
from solvers.integer_model import IntegerModel


class Backend(StrEnum):
    """Back ends by name."""

    HIGHS = "highs"
    CBC = "cbc"
    CPSAT = "cpsat"

    @property
    def is_ilp(self) -> bool:
        """Whether PuLP runs it."""
        return self is not Backend.CPSAT


@dataclass(frozen=True, slots=True)
class Job:
    """What the process is to solve.

    Attributes
    ----------
    instance
        The placement problem.
    backend
        Who solves it.
    incumbent
        Start of the search; ``None`` starts from nothing.
    limits
        Of the whole job; the process takes its own start and the building of the model off the time.
    memory_bytes
        Cap on the process's address space; ``None`` is no cap.
    """

    instance: PlacementInstance
    backend: Backend
    incumbent: Placement | None
    limits: BackendLimits
    memory_bytes: int | None = None


class ModelSource(Protocol):
    """Models to solve one after the other; what was answered so far decides what comes next. Has to be picklable."""

    def next_model(self, answers: Sequence[BackendAnswer]) -> IntegerModel | None:
        """Return the next model, ``None`` when all is answered; depends on nothing but `answers`."""


@dataclass(frozen=True, slots=True)
class ModelJob:
    """Plain integer models for the process to solve; it knows nothing of what they mean.

    Attributes
    ----------
    source
        Yields the models.
    backend, limits, memory_bytes
        As in :class:`Job`; the limits are for all models together.
    """

    source: ModelSource
    backend: Backend
    limits: BackendLimits
    memory_bytes: int | None = None


AnyJob = Job | ModelJob

OUT_OF_MEMORY = "out of memory"
"""`Finished.raw_status` of a process that met its memory limit."""


@dataclass(frozen=True, slots=True)
class Started:
    """The process runs and has read its job."""

    solver_version: str


@dataclass(frozen=True, slots=True)
class Built:
    """The model is built; its size, and the largest sum of 0/1 coefficients in a row."""

    num_variables: int
    num_rows: int
    num_terms: int
    largest_boolean_sum: float
    tick_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """A plan."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class FoundValues:
    """Values of a solution of a `ModelJob`'s current model, by variable id."""

    values: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Answered:
    """The back end's last word on one model of a `ModelJob`."""

    answer: BackendAnswer


@dataclass(frozen=True, slots=True)
class Bounded:
    """A bound on the instance's objective, minimised scale; of a `ModelJob` on the current model's own objective."""

    bound: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The back end's last word; `reason` says why it failed, and is empty otherwise."""

    ending: Ending
    raw_status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The back end is not installed."""

    reason: str


Message = Started | Built | Found | FoundValues | Answered | Bounded | Finished | Unavailable
