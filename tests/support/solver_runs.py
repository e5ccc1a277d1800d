"""Runs a solver's job inside the test's own process: the same code as the child process, without its start."""

from __future__ import annotations

import time
from dataclasses import dataclass

from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.problem.placement import Placement
from solvers.backend import BackendLimits
from solvers.child import run
from solvers.messages import Backend, Bounded, Finished, Found, Job, Message


@dataclass(frozen=True, slots=True)
class Told:
    """What a run said: best plan by its own worth, last bound, last word."""

    placement: Placement | None
    objective: float | None
    bound: float | None
    finished: Finished


def run_here(
    instance: PlacementInstance, backend: Backend, *, incumbent: Placement | None = None, limits: BackendLimits
) -> Told:
    """Solve and return what was told; equal calls give equal answers unless the time limit stops them."""
    messages: list[Message] = []
    run(Job(instance, backend, incumbent, limits), messages.append, time.monotonic())
    last = messages[-1]
    assert isinstance(last, Finished), last
    plans = [m.placement for m in messages if isinstance(m, Found)]
    worths = [(worth, i) for i, p in enumerate(plans) if (worth := evaluate(instance, p).objective) is not None]
    bounds = [m.bound for m in messages if isinstance(m, Bounded)]
    best = min(worths, default=None)
    plan, worth = (plans[best[1]], best[0]) if best is not None else (None, None)
    return Told(plan, worth, bounds[-1] if bounds else None, last)
