"""Study: requests per second of processor time, through the public Scheduler, with satisfaction measured per token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.provenance import collect
from experiments.serving_run import PolicyChoice, RunOptions, serve
from experiments.serving_setup import ServingSystem
from experiments.studies.claims import claim, figure
from experiments.studies.jobs import Row
from experiments.studies.speed_cases import (
    Lengths,
    conversation_lengths,
    four_unequal,
    one_a100,
    poisson_workload,
)
from experiments.study_contract import Claim, StudyOptions, StudySummary

TIMES = 3
"""Repetitions of which the quickest counts: other work on the machine only ever makes a run slower."""

MILLION = 1_000_000
MB = 1e6


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation that is timed.

    Attributes
    ----------
    name
        In rows.
    policy
        Name.
    system
        Makes what serves.
    rate_per_s
        Of the arrivals.
    num_requests
        In all.
    times
        Repetitions.
    """

    name: str
    policy: str
    system: Callable[[], ServingSystem]
    rate_per_s: float
    num_requests: int
    times: int = TIMES


def cases(*, is_quick: bool) -> tuple[Case, ...]:
    """Return the simulations in the order in which they run."""
    few = 2_000 if is_quick else 4_000
    many = 20_000 if is_quick else 100_000
    return (
        Case("orca", "orca", one_a100, 4.0, few),
        Case("slob", "slob", one_a100, 4.0, few),
        Case("chunked", "chunked", one_a100, 4.0, few),
        Case("pipeline4", "orca", four_unequal, 2.0, few),
        Case("pipeline4-sparse", "orca", four_unequal, 0.25, few),
        Case("growth-few", "orca", one_a100, 4.0, 4_000),
        Case("growth-many", "orca", one_a100, 4.0, many, 1 if is_quick else 2),
    )


def run(options: StudyOptions) -> StudySummary:
    """Return the summary of the speed study; runs alone, one simulation after the other, whatever the workers."""
    provenance = collect()
    lengths = conversation_lengths(options.reference_data)
    rows = []
    for case in cases(is_quick=options.is_quick):
        options.progress(f"{case.name}: {case.num_requests:,} requests")
        rows.append(timed(case, lengths, options.seed))
    options.progress("start-up")
    start = start_up_s()
    peak: Row | None = None
    if not options.is_quick:
        options.progress("a million requests, several minutes")
        peak = million(options.reference_data, options.seed)
        rows.append(peak)
    figures = speed_figures(rows, start, lengths)
    return StudySummary("speed", speed_claims(rows, is_quick=options.is_quick), (*figures, *rows), provenance)


def timed(case: Case, lengths: Lengths, seed: int) -> Row:
    """Return the row of a case: its quickest repetition."""
    workload = poisson_workload(lengths, case.num_requests, case.rate_per_s, seed)
    system = case.system()
    runs = [
        serve(workload, system, PolicyChoice(case.name, case.policy), RunOptions(has_qoe=False, seed=seed))
        for _ in range(case.times)
    ]
    cpu_s = min(run.cpu_s for run in runs)
    return {
        "kind": "timing",
        "case": case.name,
        "policy": case.policy,
        "system": system.name,
        "rate_per_s": case.rate_per_s,
        "num_requests": case.num_requests,
        "num_finished": runs[0].result.num_finished,
        "num_rejected": runs[0].result.num_rejected,
        "mean_satisfaction": float(runs[0].columns.satisfaction.mean()),
        "cpu_s": cpu_s,
        "first_cpu_s": runs[0].cpu_s,
        "req_per_cpu_s": case.num_requests / cpu_s,
        "lengths": lengths.source,
        "seed": seed,
    }


def start_up_s() -> float:
    """Return the wall time of a new process until the serving code is loaded, seconds; the quickest of three."""
    command = [sys.executable, "-c", "import experiments.serving_run"]
    found = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(command, check=True, cwd=_root())
        found.append(time.perf_counter() - began)
    return min(found)


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def million(reference_data: Path | None, seed: int, num_requests: int = MILLION) -> Row:
    """Return the row of a long simulation in a process of its own, with the most memory that it held.

    Raises
    ------
    subprocess.CalledProcessError
        When the process fails.
    """
    where = "" if reference_data is None else str(reference_data.resolve())
    command = [sys.executable, "-m", "experiments.studies.speed", str(num_requests), str(seed), where]
    told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=_root(), env=dict(os.environ)).stdout
    row: Row = json.loads(told)
    return row


def _long(num_requests: int, seed: int, reference_data: Path | None) -> Row:
    """Simulate many requests in this process and tell its peak of memory."""
    import resource

    lengths = conversation_lengths(reference_data)
    row = timed(Case("million", "orca", one_a100, 4.0, num_requests, 1), lengths, seed)
    return row | {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB}


def speed_claims(rows: list[Row], *, is_quick: bool = False) -> tuple[Claim, ...]:
    """Return the claims in the order of the documentation.

    Growth is the cost of a request among many over that of one among 4,000; a quick run can't measure it.
    """
    found = {row["case"]: row for row in rows}

    def speed(case: str) -> float | None:
        return found[case]["req_per_cpu_s"] if case in found else None

    few, many = speed("growth-few"), speed("growth-many")
    growth = few / many if few is not None and many is not None and not is_quick else None
    peak = found["million"]["peak_mb"] if "million" in found else None
    return (
        claim("speed.orca_req_per_cpu_s", speed("orca"), "requests/s", ">=", 6_000),
        claim("speed.slob_req_per_cpu_s", speed("slob"), "requests/s", ">=", 2_000),
        claim("speed.pipeline4_req_per_cpu_s", speed("pipeline4"), "requests/s", ">=", 2_000),
        claim("speed.growth_100k_vs_4k", growth, "x", "<=", 1.2),
        claim("speed.million_peak_mb", peak, "MB", "<=", 1_000),
    )


def speed_figures(rows: list[Row], start_s: float, lengths: Lengths) -> list[Row]:
    """Return what is reported without a claim."""
    found = {row["case"]: row for row in rows}
    figures = [
        figure("start_up", start_s, "s", "a new process until the serving code is loaded; target below 1"),
        figure("lengths", float(lengths.prompt.size), "pairs", lengths.source),
    ]
    for case, target in (("pipeline4-sparse", 1_000), ("chunked", None), ("growth-many", None)):
        if case in found:
            note = "" if target is None else f"target at least {target}"
            figures.append(figure(f"{case}.req_per_cpu_s", found[case]["req_per_cpu_s"], "requests/s", note))
    return figures


if __name__ == "__main__":
    _where = Path(sys.argv[3]) if len(sys.argv) > 3 and sys.argv[3] else None
    print(json.dumps(_long(int(sys.argv[1]), int(sys.argv[2]), _where)))
