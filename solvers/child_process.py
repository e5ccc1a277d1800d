"""Runs a job in a process of its own, with a deadline that holds whatever the solver does."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from slob_opt.errors import SolverUnavailable
from slob_opt.problem.placement import Placement
from slob_opt.units import format_bytes
from solvers import messages as msg
from solvers.backend import BackendAnswer, Ending

GRACE_S = 5.0
"""Wall-clock seconds after the limit until the process is killed. Chosen: solvers look at the clock more often."""

# -P: a folder named solvers where the user stands must not be taken for ours
_COMMAND = (sys.executable, "-P", "-m", "solvers.child")


@dataclass(slots=True)
class ChildReport:
    """What a process said, complete or not.

    Attributes
    ----------
    plans, bounds
        (seconds since the start, plan or bound) in the order of arrival; bounds on the minimised scale.
    values, answers
        The same for a `ModelJob`: solutions as they were found, and the last word on each model.
    finished
        The back end's last word; ``None`` when the process was killed or died.
    built
        Size of the model; ``None`` when it never got that far.
    solver_version
        ``None`` when the process never started.
    start_s, build_s, solve_s
        Seconds until the process had its job, until the model stood, and from then on.
    was_killed
        The deadline passed and the process was ended.
    exit_code
        Of the process; negative is the number of a signal.
    """

    plans: list[tuple[float, Placement]] = field(default_factory=list)
    bounds: list[tuple[float, float]] = field(default_factory=list)
    values: list[tuple[float, Mapping[int, float]]] = field(default_factory=list)
    answers: list[BackendAnswer] = field(default_factory=list)
    finished: msg.Finished | None = None
    built: msg.Built | None = None
    solver_version: str | None = None
    start_s: float = 0.0
    build_s: float = 0.0
    solve_s: float = 0.0
    was_killed: bool = False
    exit_code: int | None = None

    @property
    def ending(self) -> Ending:
        """How it ended, a killed process being one that met a limit."""
        if self.finished is not None:
            return self.finished.ending
        return Ending.LIMIT if self.was_killed else Ending.FAILED

    @property
    def met_memory_limit(self) -> bool:
        """Whether the process said that its memory limit stopped it, or kept it from starting."""
        return self.finished is not None and self.finished.raw_status == msg.OUT_OF_MEMORY

    def why_stopped(self, memory_bytes: int | None) -> str:
        """Return why there is no last word on the models, in one sentence; empty when there is one.

        Parameters
        ----------
        memory_bytes
            The job's memory limit; ``None`` when it had none.
        """
        if self.ending in (Ending.FINISHED, Ending.INFEASIBLE):
            return ""
        told = self.finished.reason if self.finished is not None else ""
        if self.ending is Ending.LIMIT:
            return told or "stopped by a limit"
        told = told or f"the solver's process died with code {self.exit_code}"
        hint = "" if memory_bytes is None else f"; its memory limit of {format_bytes(memory_bytes)} may be too small"
        return told + hint


def run_in_child(job: msg.AnyJob, *, grace_s: float = GRACE_S, command: Sequence[str] = _COMMAND) -> ChildReport:
    """Return what a process of its own found for a job; ends it at the job's time limit plus `grace_s`.

    Parameters
    ----------
    job
        What to solve. Without a time limit there is no deadline.
    grace_s
        Seconds granted after the limit.
    command
        Starts the process; another one only in tests.

    Raises
    ------
    SolverUnavailable
        When the back end isn't installed.
    """
    with tempfile.TemporaryDirectory(prefix="slob-solve-") as scratch:  # a killed solver leaves its files behind
        return _run(job, grace_s, command, scratch)


def _run(job: msg.AnyJob, grace_s: float, command: Sequence[str], scratch: str) -> ChildReport:
    began = time.monotonic()
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1", "TMPDIR": scratch,
    }  # fmt: skip
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # so that what the solver starts (CBC) ends with it
    )
    report = ChildReport()
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        messages = _listen(process.stdout)
        _hand_over(process.stdin, job)
        _collect(report, messages, began, None if job.limits.time_s is None else job.limits.time_s + grace_s)
        if report.finished is None and not report.was_killed:  # it died: keep its own exit code
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    finally:
        _end(process)
    report.exit_code = 0 if report.finished is not None else process.returncode
    return report


def _hand_over(stdin: IO[bytes], job: msg.AnyJob) -> None:
    """Write the job; a process that died before reading it is noticed when its messages end."""
    try:
        pickle.dump(job, stdin)
        stdin.close()
    except BrokenPipeError:
        return


def _listen(stdout: IO[bytes]) -> queue.SimpleQueue[tuple[float, msg.Message | None]]:
    """Return a queue that a thread fills with (arrival, message); ``None`` marks the end."""
    arrived: queue.SimpleQueue[tuple[float, msg.Message | None]] = queue.SimpleQueue()

    def read() -> None:
        while True:
            try:
                message: msg.Message | None = pickle.load(stdout)
            except (EOFError, pickle.UnpicklingError, ValueError, OSError):  # ended, or cut off in mid-message
                message = None
            arrived.put((time.monotonic(), message))
            if message is None:
                return

    threading.Thread(target=read, daemon=True).start()
    return arrived


def _collect(
    report: ChildReport,
    messages: queue.SimpleQueue[tuple[float, msg.Message | None]],
    began: float,
    deadline_s: float | None,
) -> None:
    """Fill the report until the last word, the end of messages or the deadline (seconds after `began`)."""
    while True:
        try:
            left = None if deadline_s is None else max(0.0, deadline_s - (time.monotonic() - began))
            arrival, message = messages.get(timeout=left)
        except queue.Empty:
            report.was_killed = True
            message, arrival = None, time.monotonic()
        at = arrival - began
        match message:
            case None:
                break
            case msg.Started(solver_version=found):
                report.solver_version, report.start_s = found, at
            case msg.Built():
                report.built, report.build_s = message, at - report.start_s
            case msg.Found(placement=plan):
                report.plans.append((at, plan))
            case msg.FoundValues(values=values):
                report.values.append((at, values))
            case msg.Answered(answer=answer):
                report.answers.append(answer)
            case msg.Bounded(bound=bound):
                report.bounds.append((at, bound))
            case msg.Unavailable(reason=reason):
                raise SolverUnavailable(reason)
            case msg.Finished():
                report.finished = message
                break
    report.solve_s = max(0.0, at - report.start_s - report.build_s)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all it started (their group lives as long as the process isn't waited for), then wait."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
