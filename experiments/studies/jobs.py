"""Many jobs in a few processes, with progress, an estimate of what is left, and a file of finished ones."""

from __future__ import annotations

import hashlib
import json
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""Flat, plain JSON values."""

SCHEMA_VERSION = 1
FINISHED_FILE = "finished.jsonl"
"""Name of the file of finished jobs in a study's output folder."""


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work.

    Attributes
    ----------
    key
        What fixes its rows: two jobs with one key would give the same rows.
    label
        Shown while it runs.
    expected_s
        Rough seconds, for the estimate of time left only.
    work
        Makes the rows; has to be picklable (a function of a module, or a partial of one).
    """

    key: str
    label: str
    expected_s: float
    work: Callable[[], list[Row]]


def run_jobs(
    jobs: Sequence[Job], folder: Path, *, workers: int, progress: Callable[[str], None]
) -> tuple[list[Row], int]:
    """Return the rows of all jobs in the order of the jobs, and how many jobs came from an earlier call.

    Finished jobs are appended to :data:`FINISHED_FILE` in the folder as they end; a later call with the same folder
    takes them from there. A job that breaks gives one row of kind ``"failure"``; it and a job with a row whose column
    ``broke`` is true are tried again next time.

    Parameters
    ----------
    workers
        Processes; one runs everything in this process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FINISHED_FILE
    finished = read_finished(path)
    left = [job for job in jobs if job.key not in finished]
    num_resumed = len(jobs) - len(left)
    done: dict[str, list[Row]] = {job.key: finished[job.key] for job in jobs if job.key in finished}
    clock = _Clock(left, num_resumed, progress)
    with path.open("a", encoding="utf-8") as file:
        for job, rows in _run_all(left, workers):
            done[job.key] = rows
            if not any(row["kind"] == "failure" or row.get("broke") for row in rows):
                entry = {"schema_version": SCHEMA_VERSION, "key": job.key, "label": job.label, "rows": rows}
                file.write(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n")
                file.flush()
            clock.tell(job)
    return [row for job in jobs for row in done[job.key]], num_resumed


def read_finished(path: Path) -> dict[str, list[Row]]:
    """Return rows by key from an earlier call's file.

    A torn last line is cut off the file, lines of another schema are ignored.
    """
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    whole, newline, rest = text.rpartition("\n")
    if rest:
        path.write_text(whole + newline, encoding="utf-8")
    entries = [json.loads(line) for line in whole.splitlines() if line.strip()]
    return {e["key"]: e["rows"] for e in entries if e.get("schema_version") == SCHEMA_VERSION}


def key_of(*parts: object) -> str:
    """Return a key over the text of some parts, hex."""
    return hashlib.sha256("|".join(str(part) for part in parts).encode()).hexdigest()


def source_digest(*packages: str) -> str:
    """Return the SHA-256 over the Python sources of packages, hex: finished jobs of other code are not taken over."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[2]
    for package in packages:
        for file in sorted((root / package).rglob("*.py")):
            digest.update(str(file.relative_to(root)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _run_all(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, list[Row]]]:
    if workers == 1 or len(jobs) < 2:
        for job in jobs:
            yield job, _run_one(job)
        return
    for job in jobs:
        pickle.dumps(job)  # the pool of Python 3.11 hangs on what can't be pickled instead of saying so
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures: dict[Future[list[Row]], Job] = {pool.submit(_run_one, job): job for job in jobs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _run_one(job: Job) -> list[Row]:
    """Run one job; the edge of a worker process."""
    try:
        return job.work()
    except Exception as error:  # noqa: BLE001 - one broken job must not cost the others an hour; it is told in its row
        message = f"{type(error).__name__}: {error}"
        return [{"kind": "failure", "instance": job.label, "message": message, "trace": traceback.format_exc()}]


class _Clock:
    """Tells how many jobs are done and about how long the others take."""

    def __init__(self, jobs: Sequence[Job], num_resumed: int, progress: Callable[[str], None]) -> None:
        self._total = len(jobs) + num_resumed
        self._num_done = num_resumed
        self._expected_s = sum(job.expected_s for job in jobs)
        self._done_s = 0.0
        self._began = time.monotonic()
        self._progress = progress
        progress(
            f"{num_resumed} of {self._total} instances taken over from an earlier run" if num_resumed else "started"
        )

    def tell(self, job: Job) -> None:
        self._num_done += 1
        self._done_s += job.expected_s
        pace = (time.monotonic() - self._began) / self._done_s if self._done_s > 0 else 0.0
        left_s = pace * max(0.0, self._expected_s - self._done_s)
        self._progress(
            f"{self._num_done} of {self._total} instances, about {left_s / 60:.1f} min left, last {job.label}"
        )
