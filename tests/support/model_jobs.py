"""Runs a solver's job of plain models in this process, so that many small solves need no process starts."""

from __future__ import annotations

import time

from solvers.child import run
from solvers.child_process import ChildReport
from solvers.messages import Answered, Bounded, Built, Finished, FoundValues, Job, Message, ModelJob, Started


def run_here(job: Job | ModelJob) -> ChildReport:
    """Return what the process of a job would report; stands in for ``child_process.run_in_child``."""
    report = ChildReport()

    def hear(message: Message) -> None:
        match message:
            case Started(solver_version=version):
                report.solver_version = version
            case Built():
                report.built = message
            case FoundValues(values=values):
                report.values.append((0.0, values))
            case Bounded(bound=bound):
                report.bounds.append((0.0, bound))
            case Answered(answer=answer):
                report.answers.append(answer)
            case Finished():
                report.finished = message
            case _:
                raise AssertionError(f"a job of plain models says {message}")

    run(job, hear, time.monotonic())
    return report
