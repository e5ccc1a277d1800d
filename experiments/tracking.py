"""The MLflow store: records in, runs out.

Only the client with explicit run ids is used, so threads never share an "active run". One process opens the store
(which creates tables and experiment) before workers start. Workers hand back records
(:class:`~experiments.run_record.RunRecord`) or, when they must write themselves, open the existing store; busy moments
are waited out.

MLflow is imported when a store is opened.
"""

from __future__ import annotations

import errno
import http.client
import logging
import os
import random
import sqlite3
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from experiments.run_record import RunRecord
from slob_opt.errors import TrackingError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

T = TypeVar("T")

PARENT_TAG = "mlflow.parentRunId"
BUSY_WAIT_S = 60.0
"""Longest wait for a store that another process is writing to, seconds. Chosen: a batch takes well under a second."""
ANSWER_WAIT_S = 10.0
"""Longest wait for the first answer of a tracking server, seconds; MLflow itself would try for minutes. Chosen."""
_BUSY = ("database is locked", "database table is locked", "database schema is locked")
_FULL = ("disk is full", "no space left", "disk i/o error", "file too large")
_READ_ONLY = ("readonly database", "unable to open database", "permission denied", "not a directory", "read-only file")
_BATCH = {"metrics": 1000, "params": 100, "tags": 100}


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where runs go.

    Attributes
    ----------
    uri
        MLflow tracking URI.
    artifacts
        Folder of artifacts for a local database; ``None`` leaves that to the server.
    """

    uri: str
    artifacts: Path | None

    @property
    def database(self) -> Path | None:
        """File of a local SQLite store, else ``None``."""
        if not self.uri.startswith("sqlite:///"):
            return None
        return Path(unquote(self.uri.removeprefix("sqlite:///").split("?")[0]))


def store_location(folder: Path, uri: str | None = None) -> StoreLocation:
    """Return the store below a folder, or the one that `uri` names.

    Parameters
    ----------
    folder
        Output folder; the default store is ``mlflow.db`` in it, with artifacts beside it.
    uri
        What MLFLOW_TRACKING_URI says; ``None`` or empty takes the default.

    Raises
    ------
    TrackingError
        For a file store; MLflow refuses them since 3.13, whatever flag is set, once a server is involved.
    """
    if not uri:
        path = (folder / "mlflow.db").absolute()
        return StoreLocation(f"sqlite:///{path}", path.parent / "artifacts")
    scheme = urlsplit(uri).scheme
    if scheme in ("", "file"):
        source = unquote(urlsplit(uri).path) if scheme else uri
        target = f"sqlite:///{Path(source).absolute().parent / 'mlflow.db'}"
        raise TrackingError(
            f"MLFLOW_TRACKING_URI is the file store {uri!r}, which MLflow no longer supports; move it with: "
            f"mlflow migrate-filestore --source {source} --target {target} and set MLFLOW_TRACKING_URI={target}"
        )
    location = StoreLocation(uri, None)
    if location.database is not None:
        return StoreLocation(uri, location.database.absolute().parent / "artifacts")
    return location


def explain(error: BaseException, uri: str) -> str:
    """Return one sentence for what went wrong with a store and what to do."""
    text = " ".join(str(e) for e in _chain(error)).lower()
    codes = {getattr(e, "errno", None) for e in _chain(error)}
    if any(mark in text for mark in _BUSY):
        return f"the tracking store {uri} is locked by another process; stop that process or use another --out"
    if codes & {errno.ENOSPC, errno.EFBIG, errno.EDQUOT} or any(mark in text for mark in _FULL):
        return f"the disk of the tracking store {uri} is full; free some space or use another --out"
    if codes & {errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST} or any(
        mark in text for mark in _READ_ONLY
    ):
        return f"the tracking store {uri} can't be written; check the folder's permissions or use another --out"
    first = str(error).strip().splitlines()
    return f"the tracking store {uri} failed: {first[0] if first else type(error).__name__}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _is_busy(error: BaseException) -> bool:
    return any(mark in str(e).lower() for e in _chain(error) for mark in _BUSY)


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


def check_writable(location: StoreLocation, wait_s: float) -> None:
    """Make sure that a local database can be written; MLflow itself would try for minutes before it says no.

    Parameters
    ----------
    location
        The store; a server is only asked for an answer, whatever it says.
    wait_s
        Longest wait for a locked database, seconds.

    Raises
    ------
    TrackingError
        When folder or database can't be written, or no server answers.
    """
    path = location.database
    if path is None:
        if urlsplit(location.uri).scheme in ("http", "https"):
            _check_answers(location.uri)
        return
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        if location.artifacts is not None:
            location.artifacts.mkdir(parents=True, exist_ok=True)
            probe = location.artifacts / f".probe-{os.getpid()}"
            probe.write_bytes(b"x" * 4096)
            probe.unlink()
        connection = sqlite3.connect(path, timeout=wait_s, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        finally:
            connection.close()
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(explain(error, location.uri)) from error


def _check_answers(uri: str) -> None:
    """Raise TrackingError when no server is at an address. Errors that it answers with are left to MLflow."""
    try:
        with urllib.request.urlopen(uri, timeout=ANSWER_WAIT_S):
            pass
    except (urllib.error.HTTPError, http.client.HTTPException):
        return  # it answered, which is all that was asked
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return  # MLflow has settings of its own for certificates
        raise TrackingError(
            f"the tracking server {uri} does not answer ({getattr(reason, 'strerror', None) or reason}); start it, "
            "correct MLFLOW_TRACKING_URI or pass --no-track"
        ) from error


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

        client, experiment_id = _patiently(find_or_create, location.uri, busy_wait_s)
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
        return _patiently(action, self.location.uri, self._busy_wait_s)


def _patiently(action: Callable[[], T], uri: str, wait_s: float) -> T:
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
        except (MlflowException, SQLAlchemyError, OSError) as error:
            if not _is_busy(error) or time.monotonic() >= deadline:
                raise TrackingError(explain(error, uri)) from error
        time.sleep(pause_s * jitter.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, 1.0)
