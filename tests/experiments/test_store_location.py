"""Places where runs can't go: one sentence each, soon, and nothing left behind."""

from __future__ import annotations

import itertools
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments import store_location as module
from experiments.store_location import StoreLocation, check_writable, explain, store_location
from slob_opt.errors import TrackingError

EXPECTED = "expected sqlite:///FILE, a server as http://HOST:PORT, or a database as postgresql://HOST/NAME"


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder one stands in: with a folder, a file, and a file that is no database."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "text.db").write_text("no database\n" * 200, encoding="utf-8")
    return tmp_path


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """``mlflow.db`` in the folder, held by another writer."""
    connection = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    yield connection
    connection.close()


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("foo://x", "MLflow knows no store of the kind foo; " + EXPECTED),
        ("s3://bucket/x", "MLflow knows no store of the kind s3; " + EXPECTED),
        ("uc:x", "MLflow knows no store of the kind uc; " + EXPECTED),
        ("http://", "there is no host or port of that form; " + EXPECTED),
        ("http://a b", "there is no host or port of that form; " + EXPECTED),
        ("http://host:0", "there is no host or port of that form; " + EXPECTED),
        ("http://host:port", EXPECTED),
        ("http://host:99999", EXPECTED),
        ("http://[x", EXPECTED),
        ("sqlite://", "it names no file"),
        ("sqlite:///", "it names no file"),
        ("sqlite:///:memory:", "it names no file"),
        ("sqlite:///?timeout=3", "it names no file"),
        ("sqlite:x.db", "three slashes"),
        ("sqlite+foo:///x.db", "three slashes"),
        ("sqlite:///folder", "folder is a folder; expected a file in it, as sqlite:///folder/mlflow.db"),
        ("folder", "this is a folder; expected a file in it, as sqlite:///"),
        ("file:folder", "this is a folder; expected a file in it, as sqlite:///"),
        ("file", "if the file is a database write sqlite:///"),
        ("file://", "it names no place"),
        ("/", "it names no place"),
    ],
)
def test_a_text_that_names_no_store_is_one_sentence(uri: str, sentence: str, places: Path) -> None:
    before = everything_in(places)
    with pytest.raises(TrackingError) as caught:
        store_location(places, uri)
    told = str(caught.value)
    assert told.startswith(f"MLFLOW_TRACKING_URI is {uri!r}: ")
    assert sentence in told
    assert "\n" not in told
    assert everything_in(places) == before


@pytest.mark.parametrize(
    "uri",
    [
        "http://tracking:5000",
        "https://tracking/mlflow",
        "postgresql://user:word@host/runs",
        "mysql+pymysql://host/runs",
        "databricks",
        "databricks://profile",
    ],
)
def test_what_mlflow_knows_is_left_to_it(uri: str, tmp_path: Path) -> None:
    assert store_location(tmp_path, f" {uri} ") == StoreLocation(uri, None, is_named=True)


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("sqlite:///text.db", "failed: file is not a database"),
        ("sqlite:///file/x.db", "can't be written"),
        ("sqlite:////proc/x/y.db", "failed: "),
        ("sqlite:////proc/version", "can't be written"),
    ],
)
def test_a_place_that_can_t_be_written_is_one_sentence_and_stays_as_it_was(
    uri: str, sentence: str, places: Path
) -> None:
    before = everything_in(places)
    with pytest.raises(TrackingError) as caught:
        check_writable(store_location(places, uri), 0.0)
    told = str(caught.value)
    assert told.startswith(f"the tracking store {uri} ")
    assert sentence in told
    assert told.endswith("correct MLFLOW_TRACKING_URI or pass --no-track")
    assert "\n" not in told
    assert everything_in(places) == before


def test_folders_that_were_made_on_the_way_are_taken_away_again(tmp_path: Path) -> None:
    """The database could be made; its artifacts' name is taken by a file."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "artifacts").touch()
    with pytest.raises(TrackingError, match="can't be written"):
        check_writable(store_location(tmp_path / "out"), 0.0)
    assert everything_in(tmp_path) == ["out", "out/artifacts"]
    elsewhere = StoreLocation(f"sqlite:///{tmp_path}/new/a/x.db", tmp_path / "out" / "artifacts")
    with pytest.raises(TrackingError, match="can't be written"):
        check_writable(elsewhere, 0.0)
    assert everything_in(tmp_path) == ["out", "out/artifacts"]


def test_a_place_that_can_be_written_has_its_folders_afterwards(tmp_path: Path) -> None:
    check_writable(store_location(tmp_path / "new" / "out"), 0.0)
    assert (tmp_path / "new" / "out" / "artifacts").is_dir()
    assert everything_in(tmp_path / "new" / "out" / "artifacts") == []


def test_a_database_that_is_held_is_not_waited_for_long_and_nothing_is_left(
    locked: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the patience with writers is: nobody writes here."""
    monkeypatch.setattr(module, "LOCK_WAIT_S", 0.0)
    monkeypatch.setattr(module, "_LOCK_STEP_S", 0.0)
    before = everything_in(tmp_path)
    with pytest.raises(TrackingError, match="is locked by another process; stop that process or use another --out"):
        check_writable(store_location(tmp_path), 3600.0)
    assert everything_in(tmp_path) == before
    assert module.LOCK_WAIT_S <= 10


def test_a_database_that_others_write_to_is_waited_for(
    locked: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files change at each look, and the last of the others is done at the fifth."""
    looks = itertools.count()

    def traces(path: Path) -> Any:
        look = next(looks)
        if look == 5:
            locked.execute("ROLLBACK")
        return ((look, 0),)

    monkeypatch.setattr(module, "LOCK_WAIT_S", 0.0)
    monkeypatch.setattr(module, "_LOCK_STEP_S", 0.0)
    monkeypatch.setattr(module, "_traces", traces)
    check_writable(store_location(tmp_path), 3600.0)
    assert next(looks) == 6


def test_traces_of_a_database_change_with_every_write(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    assert module._traces(path) == (None, None, None)
    connection = sqlite3.connect(path, isolation_level=None)
    seen = [module._traces(path)]
    for statement in ("CREATE TABLE t (a)", "BEGIN", "INSERT INTO t VALUES (1)", "COMMIT"):
        connection.execute(statement)
        seen.append(module._traces(path))
    connection.close()
    assert seen[0] != seen[1] != seen[3] != seen[4]


@pytest.mark.parametrize("kind", ["http", "https", "postgresql", "mysql+pymysql", "mssql"])
def test_a_server_that_is_not_there_is_one_sentence(kind: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, so that nobody else listens there; not listening itself
        uri = f"{kind}://127.0.0.1:{free.getsockname()[1]}/runs"
        with pytest.raises(TrackingError) as caught:
            check_writable(StoreLocation(uri, None, is_named=True), 0.0)
    told = str(caught.value)
    assert told.startswith(f"the tracking server {uri} does not answer (")
    assert told.endswith("start it, correct MLFLOW_TRACKING_URI or pass --no-track")


def test_a_missing_driver_is_told_with_its_name() -> None:
    location = StoreLocation("postgresql://host/runs", None, is_named=True)
    told = explain(ModuleNotFoundError("No module named 'psycopg'", name="psycopg"), location)
    assert told == (
        "the tracking store postgresql://host/runs needs the Python package of its driver, psycopg; install it, "
        "correct MLFLOW_TRACKING_URI or pass --no-track"
    )


def test_long_answers_are_cut_to_their_first_sentence() -> None:
    error = ValueError("Reading the configuration failed. Please ensure that:\n1. this\n2. that")
    told = explain(error, StoreLocation("databricks", None, is_named=True))
    assert told.startswith("the tracking store databricks failed: Reading the configuration failed; correct")


@pytest.mark.parametrize("argv", [("compare", "TINY", "--methods", "even"), ("study", "gap", "--quick")])
@pytest.mark.parametrize("uri", ["foo://x", "http://[x", "sqlite:///folder", "sqlite:///text.db"])
def test_commands_end_with_that_sentence_before_anything_runs(
    argv: tuple[str, ...],
    uri: str,
    slob: Callable[..., Any],
    tiny: tuple[str, ...],
    places: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = everything_in(places)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    words = [word for arg in argv for word in (tiny if arg == "TINY" else (arg,))]
    answer = slob(*words, "--out", "new")
    assert (answer.code, answer.out) == (2, "")
    assert len(answer.err.strip().splitlines()) == 1
    assert uri in answer.err
    assert everything_in(places) == before
