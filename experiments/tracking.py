"""The MLflow store: records in, runs out.

Only the client with explicit run ids is used, so threads never share an "active run". One process opens the store
(which creates tables and experiment) before workers start. Workers hand back records
(:class:`~experiments.run_record.RunRecord`) or, when they must write themselves, open the existing store; busy moments
are waited out.

MLflow is imported when a store is opened.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from experiments.run_record import RunRecord
from experiments.store_location import StoreLocation, check_writable, explain, is_busy
from slob_opt.errors import TrackingError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

T = TypeVar("T")

PARENT_TAG = "mlflow.parentRunId"
BUSY_WAIT_S = 60.0
"""Longest wait for a store that other processes are writing to, seconds. Chosen: a batch takes well under a second."""
_BATCH = {"metrics": 1000, "params": 100, "tags": 100}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow's and alembic's log lines off the screen; errors come back as exceptions."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class TrackingStore:
    """An open store and one experiment in it. Methods may be called from several threads.

    Parameters
    ----------
    client
        MLflow client of the store.
    location
        Where it is.
    experiment
        Name of the experiment.
    experiment_id
        Its id; every run, children too, goes there.
    busy_wait_s
        Longest wait for other writers, seconds.
    """

    def __init__(
        self, client: MlflowClient, location: StoreLocation, experiment: str, experiment_id: str, busy_wait_s: float
    ) -> None:
        self.client = client
        self.location = location
        self.experiment = experiment
        self.experiment_id = experiment_id
        self._busy_wait_s = busy_wait_s

    @classmethod
    def open(cls, location: StoreLocation, experiment: str, *, busy_wait_s: float = BUSY_WAIT_S) -> TrackingStore:
        """Return the store, created with its experiment when absent. Call once before parallel workers start.

        Raises
        ------
        TrackingError
            When MLflow is missing or the store can't be reached or written.
        """
        check_writable(location, busy_wait_s)
        try:
            from mlflow.tracking import MlflowClient
        except ModuleNotFoundError as error:
            raise TrackingError("tracking needs mlflow: pip install 'slob[experiments]', or pass --no-track") from error
        artifacts = location.artifacts / experiment if location.artifacts is not None else None

        def find_or_create() -> tuple[MlflowClient, str]:
            client = MlflowClient(tracking_uri=location.uri)
            found = client.get_experiment_by_name(experiment)
            if found is not None:
                if found.lifecycle_stage != "active":
                    client.restore_experiment(found.experiment_id)
                return client, str(found.experiment_id)
            place = artifacts.as_uri() if artifacts is not None else None
            return client, str(client.create_experiment(experiment, artifact_location=place))

        client, experiment_id = _patiently(find_or_create, location, busy_wait_s)
        return cls(client, location, experiment, experiment_id, busy_wait_s)

    def start(self, record: RunRecord, *, parent_run_id: str | None = None) -> str:
        """Start a run with what is known so far and return its id; end it with :meth:`finish`."""
        tags = dict(record.tags) | ({PARENT_TAG: parent_run_id} if parent_run_id is not None else {})
        run = self._do(lambda: self.client.create_run(self.experiment_id, tags=tags, run_name=record.name))
        run_id = str(run.info.run_id)
        self._log(run_id, record)
        return run_id

    def append(self, run_id: str, record: RunRecord) -> None:
        """Add tags, parameters, metrics and artifacts to a run that was started; ignores the record's name."""
        from mlflow.entities import RunTag

        if record.tags:
            tags = [RunTag(key, value) for key, value in record.tags]
            for i in range(0, len(tags), _BATCH["tags"]):
                part = tags[i : i + _BATCH["tags"]]
                self._do(lambda part=part: self.client.log_batch(run_id, tags=part))  # type: ignore[misc]
        self._log(run_id, record)

    def finish(self, run_id: str, *, has_failed: bool = False) -> None:
        """End a run."""
        self._do(lambda: self.client.set_terminated(run_id, status="FAILED" if has_failed else "FINISHED"))

    def write(self, record: RunRecord, *, parent_run_id: str | None = None) -> str:
        """Store a whole run and return its id.

        Raises
        ------
        TrackingError
            When the store can't be written; what was stored before stays.
        """
        run_id = self.start(record, parent_run_id=parent_run_id)
        self.finish(run_id, has_failed=record.has_failed)
        return run_id

    def _log(self, run_id: str, record: RunRecord) -> None:
        """Store parameters and metrics in batches, then artifacts."""
        from mlflow.entities import Metric, Param

        params, long_texts = record.short_params()
        now_ms = int(time.time() * 1000)
        metrics = [Metric(name, float(value), now_ms, 0) for name, value in record.metrics]
        for item in record.thin_series():
            metrics += [
                Metric(item.name, float(value), now_ms + round(at * 1000), step)
                for step, (at, value) in enumerate(item.points)
            ]
        entries = [Param(key, value) for key, value in params]
        for i in range(0, len(entries), _BATCH["params"]):
            part = entries[i : i + _BATCH["params"]]
            self._do(lambda part=part: self.client.log_batch(run_id, params=part))  # type: ignore[misc]
        for i in range(0, len(metrics), _BATCH["metrics"]):
            batch = metrics[i : i + _BATCH["metrics"]]
            self._do(lambda batch=batch: self.client.log_batch(run_id, metrics=batch))  # type: ignore[misc]
        texts = [*record.texts, *long_texts, *((table.path, table.as_csv()) for table in record.tables)]
        for path, text in texts:
            self._do(lambda path=path, text=text: self.client.log_text(run_id, text, path))  # type: ignore[misc]
        for folder, path in record.files:
            self._do(lambda folder=folder, path=path: self.client.log_artifact(run_id, path, folder or None))  # type: ignore[misc]

    def _do(self, action: Callable[[], T]) -> T:
        return _patiently(action, self.location, self._busy_wait_s)


def _patiently(action: Callable[[], T], location: StoreLocation, wait_s: float) -> T:
    """Run an action on the store; wait while it is busy, turn failures into TrackingError."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    deadline = time.monotonic() + wait_s
    jitter = random.Random(os.getpid())  # two processes that collided must not wait equally long
    pause_s = 0.02
    while True:
        try:
            with _quiet():
                return action()
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:  # ImportError: a database's driver
            if not is_busy(error) or time.monotonic() >= deadline:
                raise TrackingError(explain(error, location)) from error
        time.sleep(pause_s * jitter.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, 1.0)
