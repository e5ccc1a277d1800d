"""What worker processes do in tests of the store; here, since a new process can import this folder and no test file."""

from __future__ import annotations

from pathlib import Path

from experiments.run_record import RunRecord, Series
from experiments.store_location import store_location
from experiments.tracking import TrackingStore


def history_of_200(index: int) -> RunRecord:
    """200 metric points, as a worker process hands them back."""
    return RunRecord(
        f"worker-{index}", series=(Series("history.bound", tuple((i / 10, float(i)) for i in range(200))),)
    )


def write_from_process(arguments: tuple[str, Path, int]) -> str:
    """Open the existing store in another process and write one run."""
    experiment, folder, index = arguments
    own = TrackingStore.open(store_location(folder), experiment, busy_wait_s=60)
    return own.write(history_of_200(index))
