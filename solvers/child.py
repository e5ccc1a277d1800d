"""The solver's own process: reads a pickled job from standard input, writes messages to standard output.

Started as ``python -P -m solvers.child`` by :mod:`solvers.child_process`; what a solver prints goes nowhere, so that it
can't mix with the messages.
"""

from __future__ import annotations

import os
import pickle
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import BinaryIO

from slob_opt.errors import InputError, SolverUnavailable
from slob_opt.problem.placement import Placement
from slob_opt.units import format_bytes
from solvers import cpsat_adapter, pulp_adapter
from solvers import messages as msg
from solvers.backend import BackendAnswer, BackendLimits, Ending, Listener
from solvers.formulation import Formulation, decode
from solvers.incumbent import encode
from solvers.integer_model import IntegerModel
from solvers.interval_model import interval_model
from solvers.symmetry import canonical_placement
from solvers.throughput_cpsat import throughput_cpsat
from solvers.throughput_ilp import throughput_ilp

Send = Callable[[msg.Message], None]


class Reporter:
    """Turns a back end's progress into messages; sends a bound or a plan only when it is new.

    Parameters
    ----------
    job, formulation
        What is solved, and the model it became.
    send
        Writes a message.
    """

    def __init__(self, job: msg.Job, formulation: Formulation, send: Send) -> None:
        self._job = job
        self._formulation = formulation
        self._send = send
        self._bound: float | None = None
        self._plan: Placement | None = None

    def on_solution(self, values: Mapping[int, float]) -> None:
        """Send the plan that values tell."""
        table = self._job.instance.table
        plan = decode(table, self._formulation.slots, values)
        if plan is None:
            return
        plan = canonical_placement(table, plan)
        if plan != self._plan:
            self._plan = plan
            self._send(msg.Found(plan))

    def on_bound(self, bound: float) -> None:
        """Send a bound on the model's objective as one on the instance's."""
        if abs(bound) > 1e29:  # solvers say infinity in several ways
            return
        natural = self._formulation.natural_bound(bound)
        if self._bound is None or natural > self._bound:
            self._bound = natural
            self._send(msg.Bounded(natural))


def build(job: msg.Job) -> Formulation:
    """Return the formulation of a job's instance for its back end, with the incumbent as hint."""
    instance = job.instance
    if instance.is_throughput:
        formulation = throughput_ilp(instance) if job.backend.is_ilp else throughput_cpsat(instance)
    else:
        formulation = interval_model(instance, has_circuit=not job.backend.is_ilp)
    if job.incumbent is not None:
        formulation.model.hint.update(encode(instance.table, formulation, job.incumbent) or {})
    return formulation


class ModelReporter:
    """Turns a back end's progress on a plain model into messages; `send` writes one."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._bound: float | None = None

    def on_solution(self, values: Mapping[int, float]) -> None:
        """Send the values other than zero."""
        self._send(msg.FoundValues({v: x for v, x in values.items() if x}))

    def on_bound(self, bound: float) -> None:
        """Send a bound when it is new."""
        if abs(bound) <= 1e29 and (self._bound is None or bound > self._bound):
            self._bound = bound
            self._send(msg.Bounded(bound))


def run(job: msg.AnyJob, send: Send, began_s: float) -> None:
    """Solve a job and send messages; the last one is `Finished` or `Unavailable`.

    Parameters
    ----------
    began_s
        ``time.monotonic()`` at the job's start; the time limit counts from there.
    """
    try:
        adapter = pulp_adapter if job.backend.is_ilp else cpsat_adapter
        send(msg.Started(adapter.version()))
        if isinstance(job, msg.ModelJob):
            _run_models(job, send, began_s)
        else:
            _run_instance(job, send, began_s)
    except SolverUnavailable as error:
        if job.memory_bytes is not None and not isinstance(error.__cause__, ModuleNotFoundError):
            limit = format_bytes(job.memory_bytes)
            reason = f"the memory limit of {limit} is too small to start the solver in; raise it"
            send(msg.Finished(Ending.LIMIT, msg.OUT_OF_MEMORY, reason))
        else:
            send(msg.Unavailable(str(error)))
    except InputError as error:
        send(msg.Finished(Ending.FAILED, "refused", str(error)))
    except MemoryError:
        reason = "the machine ran out of memory"
        if job.memory_bytes is not None:
            reason = f"the solver reached its memory limit of {format_bytes(job.memory_bytes)}; raise it"
        send(msg.Finished(Ending.LIMIT, msg.OUT_OF_MEMORY, reason))


def _run_instance(job: msg.Job, send: Send, began_s: float) -> None:
    """Build the device-indexed model of an instance and solve it."""
    formulation = build(job)
    model = formulation.model
    boolean_sum = model.largest_boolean_sum()
    send(msg.Built(len(model.variables), len(model.rows), model.num_terms, boolean_sum, formulation.tick_s))
    reporter = Reporter(job, formulation, send)
    answer = _solve(model, job, reporter, began_s)
    if answer.values is not None:
        reporter.on_solution(answer.values)
    if answer.bound is not None:
        reporter.on_bound(answer.bound)
    send(msg.Finished(answer.ending, answer.raw_status))


def _run_models(job: msg.ModelJob, send: Send, began_s: float) -> None:
    """Solve models until their source has no further one, or one stays unanswered."""
    answers: list[BackendAnswer] = []
    while (model := job.source.next_model(tuple(answers))) is not None:
        if not answers:
            boolean_sum = model.largest_boolean_sum()
            send(msg.Built(len(model.variables), len(model.rows), model.num_terms, boolean_sum, 0.0))
        answers.append(_solve(model, job, ModelReporter(send), began_s))
        send(msg.Answered(answers[-1]))
        if answers[-1].ending not in (Ending.FINISHED, Ending.INFEASIBLE):
            break
    last = answers[-1] if answers else BackendAnswer(Ending.FINISHED, None, None, "nothing to solve")
    send(msg.Finished(last.ending, last.raw_status))


def _solve(model: IntegerModel, job: msg.AnyJob, listener: Listener, began_s: float) -> BackendAnswer:
    """Solve one model within what is left of the job's time."""
    limits: BackendLimits = job.limits
    if limits.time_s is not None:
        limits = replace(limits, time_s=max(0.0, limits.time_s - (time.monotonic() - began_s)))
    if job.backend is msg.Backend.CPSAT:
        return cpsat_adapter.solve(model, limits, listener)
    return pulp_adapter.solve(model, limits, listener, backend=job.backend.value)


def main() -> None:
    """Serve one job and exit; the only place where this process touches its standard streams."""
    began_s = time.monotonic()
    channel: BinaryIO = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a device, for its file number
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    job: msg.AnyJob = pickle.load(sys.stdin.buffer)
    if job.memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = job.memory_bytes if hard == resource.RLIM_INFINITY else min(job.memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))

    def send(message: msg.Message) -> None:
        pickle.dump(message, channel)
        channel.flush()

    run(job, send, began_s)


if __name__ == "__main__":
    main()
