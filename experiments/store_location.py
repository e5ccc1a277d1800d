"""Where runs go, and what can be wrong with that place; looked at before MLflow is, which would try for minutes."""

from __future__ import annotations

import errno
import http.client
import os
import socket
import sqlite3
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from slob_opt.errors import TrackingError

ANSWER_WAIT_S = 10.0
"""Longest wait for the first answer of a tracking server, seconds; MLflow itself would try for minutes. Chosen."""
LOCK_WAIT_S = 5.0
"""Longest wait for a database that is held but not written to, seconds. Chosen: a batch takes well under a second."""
_LOCK_STEP_S = 0.5
_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""Database servers that MLflow knows, with their usual ports."""
_EXPECTED = "expected sqlite:///FILE, a server as http://HOST:PORT, or a database as postgresql://HOST/NAME"
_BUSY = ("database is locked", "database table is locked", "database schema is locked")
_FULL = ("disk is full", "no space left", "disk i/o error", "file too large")
_READ_ONLY = ("readonly database", "unable to open database", "permission denied", "not a directory", "read-only file")
_FULL_CODES = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
_READ_ONLY_CODES = {errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where runs go.

    Attributes
    ----------
    uri
        MLflow tracking URI.
    artifacts
        Folder of artifacts for a local database; ``None`` leaves that to the server.
    is_named
        Whether the user named it in MLFLOW_TRACKING_URI; else it follows from the output folder.
    """

    uri: str
    artifacts: Path | None
    is_named: bool = False

    @property
    def database(self) -> Path | None:
        """File of a local SQLite store, else ``None``."""
        if not self.uri.startswith("sqlite:///"):
            return None
        return Path(unquote(self.uri.removeprefix("sqlite:///").split("?")[0]))

    @property
    def way_out(self) -> str:
        """What to do when the store can't be used."""
        return "correct MLFLOW_TRACKING_URI or pass --no-track" if self.is_named else "use another --out"


def store_location(folder: Path, uri: str | None = None) -> StoreLocation:
    """Return the store below a folder, or the one that `uri` names.

    Parameters
    ----------
    folder
        Output folder; the default store is ``mlflow.db`` in it, with artifacts beside it.
    uri
        What MLFLOW_TRACKING_URI says; ``None`` or blank takes the default.

    Raises
    ------
    TrackingError
        For a text that names no store, a database in memory, and a file store; MLflow refuses those since 3.13,
        whatever flag is set, once a server is involved.
    """
    uri = (uri or "").strip()
    if not uri:
        path = (folder / "mlflow.db").absolute()
        return StoreLocation(f"sqlite:///{path}", path.parent / "artifacts")
    try:
        parts = urlsplit(uri)
        is_port = parts.port is None or parts.port > 0
    except ValueError as error:  # half an IPv6 address, a port that is no number
        raise _wrong(uri, str(error)) from error
    kind = parts.scheme.partition("+")[0]  # mysql+pymysql names its driver
    if kind in ("http", "https") or kind in _PORTS:
        if not is_port or any(c.isspace() for c in uri) or (kind not in _PORTS and not parts.hostname):
            raise _wrong(uri, "there is no host or port of that form")
        return StoreLocation(uri, None, is_named=True)
    if kind == "sqlite":
        return _sqlite_location(uri)
    if uri == "databricks" or kind == "databricks":
        return StoreLocation(uri, None, is_named=True)
    if kind in ("", "file"):
        raise _file_store(uri, parts)
    raise _wrong(uri, f"MLflow knows no store of the kind {kind}")


def _wrong(uri: str, what: str, expected: str = _EXPECTED) -> TrackingError:
    return TrackingError(f"MLFLOW_TRACKING_URI is {uri!r}: {what}; {expected}")


def _sqlite_location(uri: str) -> StoreLocation:
    location = StoreLocation(uri, None, is_named=True)
    path = location.database
    if path is None and uri != "sqlite://":
        raise _wrong(uri, "a local database has three slashes before its path")
    if path is None or str(path) in ("", ".", ":memory:") or uri.partition("?")[0].endswith("///"):
        raise _wrong(uri, "it names no file, and a database in memory ends with the command")
    if path.is_dir():
        raise _wrong(uri, f"{path} is a folder", f"expected a file in it, as sqlite:///{path / 'mlflow.db'}")
    return StoreLocation(uri, path.absolute().parent / "artifacts", is_named=True)


def _file_store(uri: str, parts: SplitResult) -> TrackingError:
    """What is wrong with a path, or with the file store that it may be."""
    source = unquote(parts.path) if parts.scheme else uri
    if not source.strip("/"):
        return _wrong(uri, "it names no place")
    path = Path(source).absolute()
    target = f"sqlite:///{path.parent / 'mlflow.db'}"
    if path.is_file():
        return _wrong(uri, "this is a path", f"if the file is a database write sqlite:///{path}")
    if path.is_dir() and not any(path.glob("*/meta.yaml")):
        return _wrong(uri, "this is a folder", f"expected a file in it, as sqlite:///{path / 'mlflow.db'}")
    return TrackingError(
        f"MLFLOW_TRACKING_URI is the file store {uri!r}, which MLflow no longer supports; move it with: "
        f"mlflow migrate-filestore --source {source} --target {target} and set MLFLOW_TRACKING_URI={target}"
    )


def explain(error: BaseException, location: StoreLocation) -> str:
    """Return one sentence for what went wrong with a store and what to do."""
    text = " ".join(str(e) for e in _chain(error)).lower()
    codes = {getattr(e, "errno", None) for e in _chain(error)}
    store, way_out = f"the tracking store {location.uri}", location.way_out
    if any(mark in text for mark in _BUSY):
        return f"{store} is locked by another process; stop that process or {way_out}"
    if codes & _FULL_CODES or any(mark in text for mark in _FULL):
        return f"the disk of {store} is full; free some space or {way_out}"
    if codes & _READ_ONLY_CODES or any(mark in text for mark in _READ_ONLY):
        return f"{store} can't be written; check the folder's permissions or {way_out}"
    if isinstance(error, ModuleNotFoundError):
        return f"{store} needs the Python package of its driver, {error.name}; install it, {way_out}"
    first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return f"{store} failed: {first.partition('. ')[0].rstrip('.:;, ')}; {way_out}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def is_busy(error: BaseException) -> bool:
    """Return whether a store failed only because another process was writing to it."""
    return any(mark in str(e).lower() for e in _chain(error) for mark in _BUSY)


def check_writable(location: StoreLocation, wait_s: float) -> None:
    """Make sure that a local database can be written, or that a server answers, whatever it says.

    Makes the folders of a local store; leaves nothing behind when it raises.

    Parameters
    ----------
    location
        The store.
    wait_s
        Longest wait for a database that others keep writing to, seconds; one that is held without being written to is
        given :data:`LOCK_WAIT_S` at most.

    Raises
    ------
    TrackingError
        When folder or database can't be written, or no server answers.
    """
    path = location.database
    if path is None:
        _check_server(location)
        return
    try:
        with _new_folders(path.absolute().parent), _new_file(path):
            _wait_for_lock(path, wait_s)
            if location.artifacts is not None:
                with _new_folders(location.artifacts):
                    probe = location.artifacts / f".probe-{os.getpid()}"
                    with _new_file(probe):
                        probe.write_bytes(b"x" * 4096)
                    probe.unlink()
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(explain(error, location)) from error


@contextmanager
def _new_folders(folder: Path) -> Iterator[None]:
    """Make a folder and its parents; take away those made here, as far as they are empty, when the block fails."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for place in made:
            with suppress(OSError):
                place.rmdir()
        raise


@contextmanager
def _new_file(path: Path) -> Iterator[None]:
    """Take a file away that wasn't there before when the block fails, unless something was written into it."""
    was_there = path.exists()
    try:
        yield
    except BaseException:
        with suppress(OSError):
            if not was_there and path.stat().st_size == 0:
                path.unlink()
        raise


def _wait_for_lock(path: Path, wait_s: float) -> None:
    """Take the write lock of a database once; raises sqlite3.OperationalError when it stays locked."""
    began = held_since = time.monotonic()
    seen = _traces(path)
    connection = sqlite3.connect(path, timeout=min(wait_s, _LOCK_STEP_S), isolation_level=None)
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
                return
            except sqlite3.OperationalError as error:
                now = time.monotonic()
                if (found := _traces(path)) != seen:  # others write: they take turns, and so shall we
                    seen, held_since = found, now
                if not is_busy(error) or now - began >= wait_s or now - held_since > LOCK_WAIT_S:
                    raise
    finally:
        connection.close()


def _traces(path: Path) -> tuple[tuple[int, int] | None, ...]:
    """(Time of the last change in ns, size) of a database and its journals; ``None`` for those that aren't there."""
    found: list[tuple[int, int] | None] = []
    for suffix in ("", "-journal", "-wal"):
        try:
            stat = path.with_name(path.name + suffix).stat()
            found.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def _check_server(location: StoreLocation) -> None:
    """Raise TrackingError when no server is at an address."""
    parts = urlsplit(location.uri)
    kind = parts.scheme.partition("+")[0]
    if kind in ("http", "https"):
        _check_answers(location)
    elif kind in _PORTS and parts.hostname:
        try:
            socket.create_connection((parts.hostname, parts.port or _PORTS[kind]), ANSWER_WAIT_S).close()
        except (OSError, UnicodeError) as error:
            raise _no_answer(location, error) from error


def _check_answers(location: StoreLocation) -> None:
    """Raise TrackingError when no web server is at an address. Errors that it answers with are left to MLflow."""
    try:
        with urllib.request.urlopen(location.uri, timeout=ANSWER_WAIT_S):
            pass
    except (urllib.error.HTTPError, http.client.HTTPException):
        return  # it answered, which is all that was asked
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return  # MLflow has settings of its own for certificates
        raise _no_answer(location, reason) from error


def _no_answer(location: StoreLocation, reason: object) -> TrackingError:
    told = getattr(reason, "strerror", None) or reason
    return TrackingError(
        f"the tracking server {location.uri} does not answer ({told}); start it, correct MLFLOW_TRACKING_URI or pass "
        "--no-track"
    )
