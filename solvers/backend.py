"""What all back ends are asked and answer, in our words; the status table they must map onto."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Ending(StrEnum):
    """How a back end stopped, whatever it calls it."""

    FINISHED = "finished"
    """It says that its best solution is optimal for the model; the planner checks the gap itself."""
    INFEASIBLE = "infeasible"
    """It says that the model has no solution; told on only when confirmed."""
    LIMIT = "limit"
    """Time, memory or work ran out, with or without a solution."""
    FAILED = "failed"
    """It refused the model or broke down."""


@dataclass(frozen=True, slots=True)
class BackendLimits:
    """Limits of one run.

    Attributes
    ----------
    time_s
        Seconds for the search; ``None`` is no limit.
    deterministic_s
        Limit in CP-SAT's deterministic seconds, which gives equal runs; ``None`` is no limit. Others ignore it.
    seed, workers
        As in ``SolveLimits``.
    has_presolve
        Whether the back end may simplify the model first.
    """

    time_s: float | None
    deterministic_s: float | None = None
    seed: int = 0
    workers: int = 1
    has_presolve: bool = True


@dataclass(frozen=True, slots=True)
class BackendAnswer:
    """Last word of a back end.

    Attributes
    ----------
    ending
        See :class:`Ending`.
    values
        By variable id; ``None`` when it has no solution.
    bound
        On the model's objective; ``None`` when the back end gives none.
    raw_status
        Its own word, for the record.
    """

    ending: Ending
    values: Mapping[int, float] | None
    bound: float | None
    raw_status: str


class Listener(Protocol):
    """Hears of progress while a back end runs; may be called from its thread."""

    def on_solution(self, values: Mapping[int, float]) -> None:
        """A better solution, by variable id."""

    def on_bound(self, bound: float) -> None:
        """A better bound on the model's objective."""
