"""The store: what users of such trackers reported, each kind once (locks, races, lengths, file stores, disks)."""

from __future__ import annotations

import ast
import concurrent.futures
import multiprocessing
import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tracking_workers import history_of_200, write_from_process

from experiments.run_record import MAX_METRICS, METRIC_NAMES, RowTable, RunRecord, Series
from experiments.store_location import StoreLocation, check_writable, explain, store_location
from experiments.tracking import PARENT_TAG, TrackingStore
from slob_opt.errors import InputError, TrackingError

mlflow = pytest.importorskip("mlflow")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TrackingStore:
    """One store for the module: creating the tables takes seconds."""
    return TrackingStore.open(store_location(tmp_path_factory.mktemp("store")), "slob-test", busy_wait_s=30)


@pytest.fixture
def locked(store: TrackingStore) -> Iterator[sqlite3.Connection]:
    """The store's database, held by another writer."""
    database = store.location.database
    assert database is not None
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.close()


def reopened(store: TrackingStore, busy_wait_s: float) -> TrackingStore:
    """The same store with another patience."""
    return TrackingStore(store.client, store.location, store.experiment, store.experiment_id, busy_wait_s)


def test_a_run_holds_params_metrics_series_and_artifacts(store: TrackingStore, tmp_path: Path) -> None:
    """Cases M12 and M13: a parameter of 20 kB is kept beside the others, which lose nothing."""
    plan = tmp_path / "plan.json"
    plan.write_text("{}", encoding="utf-8")
    record = RunRecord(
        "one",
        tags=(("method", "slob"),),
        params=(("ok", "1"), ("plan", "y" * 20_000)),
        metrics=(("objective", 12.5),),
        series=(Series("history.bound", ((0.1, 20.0), (0.2, 15.0))),),
        texts=(("notes.txt", "short"),),
        files=(("", str(plan)),),
    )
    run_id = store.write(record)
    run = store.client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "one"
    assert run.data.tags["method"] == "slob"
    assert run.data.params["ok"] == "1"
    assert run.data.params["plan"].startswith("sha256:")
    assert run.data.metrics == {"objective": 12.5, "history.bound": 15.0}
    assert [m.value for m in store.client.get_metric_history(run_id, "history.bound")] == [20.0, 15.0]
    artifacts = {a.path for a in store.client.list_artifacts(run_id)}
    assert artifacts == {"params", "plan.json", "notes.txt"}
    text = Path(store.client.download_artifacts(run_id, "params/plan.txt", str(tmp_path)))
    assert text.read_text(encoding="utf-8") == "y" * 20_000


@pytest.mark.parametrize("num_series", [1, 2])
def test_many_rows_are_one_file_and_few_points(store: TrackingStore, tmp_path: Path, num_series: int) -> None:
    """Case M05: 50,000 requests are 50,000 lines of one artifact; the store itself gets 200 points of the run."""
    points = tuple((i * 1e-3, float(i)) for i in range(50_000))
    names = ("history.bound", "history.incumbent")[:num_series]
    record = RunRecord(
        "many",
        metrics=(("objective", 1.0), ("wall_s", 50.0)),
        series=tuple(Series(name, points) for name in names),
        tables=(RowTable("requests.csv", ("id", "ttft_s"), tuple((i, i / 8) for i in range(50_000))),),
    )
    run_id = store.write(record)
    stored = [store.client.get_metric_history(run_id, name) for name in store.client.get_run(run_id).data.metrics]
    assert {history[0].key for history in stored} == {"objective", "wall_s", *names}
    assert sum(len(history) for history in stored) <= MAX_METRICS == 200
    for name in names:
        kept = store.client.get_metric_history(run_id, name)
        assert len(kept) >= 50
        assert {kept[0].value, kept[-1].value} == {0.0, 49_999.0}
    assert [a.path for a in store.client.list_artifacts(run_id)] == ["requests.csv"]
    text = Path(store.client.download_artifacts(run_id, "requests.csv", str(tmp_path))).read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) == 50_001
    assert (lines[0], lines[1], lines[-1]) == ("id,ttft_s", "0,0.0", "49999,6249.875")


def test_figures_of_each_device_are_rows_and_never_metric_names(store: TrackingStore, tmp_path: Path) -> None:
    """Case M06: 64 devices with 40 figures each add nothing to the store's metrics."""
    with pytest.raises(InputError, match="closed list"):
        RunRecord("wide", metrics=tuple((f"gpu{g}.figure{f}", 1.0) for g in range(64) for f in range(40)))
    rows = tuple((g, f"figure{f}", g / 4 + f) for g in range(64) for f in range(40))
    run_id = store.write(
        RunRecord(
            "wide",
            metrics=(("objective", 1.0),),
            tables=(RowTable("devices.csv", ("device", "figure", "value"), rows),),
        )
    )
    assert set(store.client.get_run(run_id).data.metrics) == {"objective"}
    path = Path(store.client.download_artifacts(run_id, "devices.csv", str(tmp_path)))
    assert len(path.read_text(encoding="utf-8").splitlines()) == 1 + 64 * 40
    known = {name for run in store.client.search_runs([store.experiment_id]) for name in run.data.metrics}
    assert known <= METRIC_NAMES


def test_children_are_in_the_parents_experiment(store: TrackingStore) -> None:
    """Case M11."""
    parent = store.start(RunRecord("parent"))
    child = store.write(RunRecord("child"), parent_run_id=parent)
    store.append(parent, RunRecord("parent", tags=(("done", "yes"),), metrics=(("wall_s", 1.0),)))
    store.finish(parent)
    runs = [store.client.get_run(run_id) for run_id in (parent, child)]
    assert {run.info.experiment_id for run in runs} == {store.experiment_id}
    assert runs[1].data.tags[PARENT_TAG] == parent
    assert runs[0].data.tags["done"] == "yes"
    assert store.client.get_experiment(store.experiment_id).name == "slob-test"


def test_a_failed_run_is_marked(store: TrackingStore) -> None:
    run_id = store.write(RunRecord("broken", has_failed=True))
    assert store.client.get_run(run_id).info.status == "FAILED"


def test_threads_share_no_active_run(store: TrackingStore) -> None:
    """Case M08."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        run_ids = list(pool.map(lambda i: store.write(history_of_200(i)), range(8)))
    assert mlflow.active_run() is None
    assert len(set(run_ids)) == 8
    for run_id in run_ids:
        assert len(store.client.get_metric_history(run_id, "history.bound")) == 200


def test_no_code_of_ours_uses_the_run_that_all_threads_share() -> None:
    """Case M08: functions of the module `mlflow` itself act on one run for the process; only its client is used."""
    root = Path(__file__).resolve().parents[2]
    found = []
    for package in ("slob_opt", "solvers", "runtime", "experiments"):
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mlflow":
                    found.append(f"{path.relative_to(root)}:{node.lineno} mlflow.{node.attr}")
                if isinstance(node, ast.ImportFrom) and node.module == "mlflow":
                    found += [f"{path.relative_to(root)}:{node.lineno} mlflow.{alias.name}" for alias in node.names]
    fluent = {"start_run", "end_run", "active_run", "set_experiment", "set_tag", "set_tags", "autolog"}
    assert [f for f in found if f.rpartition(".")[2] in fluent or ".log_" in f] == []
    assert (root / "experiments" / "tracking.py").is_file()


def test_workers_hand_back_records_and_the_parent_stores_all_points(store: TrackingStore) -> None:
    """Case M01: eight processes with 200 metrics each; a worker needs no MLflow for that."""
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        records = list(pool.map(history_of_200, range(8)))
    run_ids = [store.write(record) for record in records]
    counts = [len(store.client.get_metric_history(run_id, "history.bound")) for run_id in run_ids]
    assert sum(counts) == 1600


@pytest.mark.slow
def test_eight_processes_may_write_to_one_store(tmp_path: Path) -> None:
    """Cases M01 and M02: store and experiment are created once before; then nobody waits for tables or loses points."""
    first = TrackingStore.open(store_location(tmp_path), "shared")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow.tracking"])  # imported once for all eight
    with concurrent.futures.ProcessPoolExecutor(8, mp_context=context) as pool:
        run_ids = list(pool.map(write_from_process, [("shared", tmp_path, i) for i in range(8)]))
    counts = [len(first.client.get_metric_history(run_id, "history.bound")) for run_id in run_ids]
    assert counts == [200] * 8
    assert len(first.client.search_experiments(filter_string="name = 'shared'")) == 1


def test_a_busy_store_is_waited_for(store: TrackingStore, locked: sqlite3.Connection) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.write, RunRecord("patient"))
        concurrent.futures.wait([waiting], timeout=0.3)
        assert not waiting.done()
        locked.execute("ROLLBACK")
        run_id = waiting.result(timeout=60)
    assert store.client.get_run(run_id).info.status == "FINISHED"


def test_a_store_that_stays_locked_is_told_in_one_sentence(store: TrackingStore, locked: sqlite3.Connection) -> None:
    """Asked before MLflow is, which would wait twenty seconds at every step."""
    with pytest.raises(TrackingError, match=r"is locked by another process; stop that process or use another --out"):
        check_writable(store.location, 0.0)
    with pytest.raises(TrackingError, match="is locked by another process"):
        TrackingStore.open(store.location, store.experiment, busy_wait_s=0.0)


def test_a_store_that_gets_locked_in_between_is_told_in_one_sentence(
    store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def refuse(*args: object, **options: object) -> None:
        calls.append(args)
        raise mlflow.exceptions.MlflowException("(sqlite3.OperationalError) database is locked")

    impatient = reopened(store, 0.05)
    monkeypatch.setattr(impatient.client, "create_run", refuse)
    with pytest.raises(TrackingError, match="is locked by another process") as caught:
        impatient.write(RunRecord("impatient"))
    assert "\n" not in str(caught.value)
    assert len(calls) > 1, "it was tried again before giving up"


def test_a_full_disk_is_told_in_one_sentence(store: TrackingStore) -> None:
    """Files may not grow: what the system says then is what it says of a full disk."""
    database = store.location.database
    assert database is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(TrackingError) as caught:
            store.write(RunRecord("no room", texts=(("long.txt", "x" * 100_000),)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "is full; free some space" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert store.write(RunRecord("room again"))


def test_an_unusable_folder_is_told_in_one_sentence(tmp_path: Path) -> None:
    """A file stands where the folder should be: works for root too, for whom no folder is read-only."""
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with pytest.raises(TrackingError, match="can't be written; check the folder's permissions") as caught:
        TrackingStore.open(store_location(tmp_path / "taken"), "x", busy_wait_s=0.0)
    assert "\n" not in str(caught.value)


def test_a_read_only_database_is_explained() -> None:
    error = sqlite3.OperationalError("attempt to write a readonly database")
    assert "can't be written" in explain(error, StoreLocation("sqlite:///x.db", None))


@pytest.mark.parametrize("uri", ["file:./mlruns", "./mlruns", "file:///data/mlruns", "mlruns"])
def test_file_stores_are_refused_with_the_command_that_moves_them(uri: str, tmp_path: Path) -> None:
    """Case M04."""
    command = r"mlflow migrate-filestore --source .*mlruns --target sqlite:///"
    with pytest.raises(TrackingError, match=command) as caught:
        store_location(tmp_path, uri)
    assert "\n" not in str(caught.value)


def test_runs_of_a_file_store_can_be_moved_by_that_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case M04: a run copied from a cluster, by the very words of the message, is there with its figures."""
    run = tmp_path / "mlruns" / "123456789012345678" / ("0" * 31 + "1")
    for folder in ("artifacts", "metrics", "params", "tags"):
        (run / folder).mkdir(parents=True)
    (run.parent / "meta.yaml").write_text(
        f"artifact_location: {run.parent}\ncreation_time: 1700000000000\nexperiment_id: '123456789012345678'\n"
        "last_update_time: 1700000000000\nlifecycle_stage: active\nname: from-the-cluster\n",
        encoding="utf-8",
    )
    (run / "meta.yaml").write_text(
        f"artifact_uri: {run / 'artifacts'}\nend_time: 1700000001000\nentry_point_name: ''\n"
        f"experiment_id: '123456789012345678'\nlifecycle_stage: active\nrun_id: {run.name}\nrun_name: old\n"
        "source_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: 1700000000000\nstatus: 3\ntags: []\n"
        "user_id: someone\n",
        encoding="utf-8",
    )
    (run / "metrics" / "objective").write_text("1700000000500 12.5 0\n", encoding="utf-8")
    (run / "params" / "seed").write_text("3", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrackingError) as caught:
        store_location(tmp_path, f"file:{tmp_path}/mlruns")
    words = str(caught.value).rpartition("move it with: mlflow ")[2].partition(" and set ")
    told = words[0].split()
    from mlflow.cli import cli

    answer = CliRunner().invoke(cli, [*told, "--no-progress"])
    assert answer.exit_code == 0, answer.output
    target = words[2].removeprefix("MLFLOW_TRACKING_URI=")
    moved = TrackingStore.open(store_location(tmp_path / "new", target), "from-the-cluster")
    (found,) = moved.client.search_runs([moved.experiment_id])
    assert (found.info.run_name, found.data.metrics, found.data.params) == ("old", {"objective": 12.5}, {"seed": "3"})


def test_the_default_store_is_a_database_in_the_folder(tmp_path: Path) -> None:
    location = store_location(tmp_path)
    assert location.uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert location.artifacts == tmp_path / "artifacts"
    assert store_location(tmp_path, "").uri == location.uri


def test_the_environments_store_is_taken(tmp_path: Path) -> None:
    assert store_location(tmp_path, "http://tracking:5000").artifacts is None
    other = store_location(tmp_path, f"sqlite:///{tmp_path}/other/x.db")
    assert other.database == tmp_path / "other" / "x.db"
    assert other.artifacts == tmp_path / "other" / "artifacts"


def test_opening_twice_finds_the_same_experiment(store: TrackingStore) -> None:
    again = TrackingStore.open(store.location, store.experiment)
    assert again.experiment_id == store.experiment_id


def test_opening_is_silent(store: TrackingStore, capfd: pytest.CaptureFixture[str]) -> None:
    TrackingStore.open(store.location, "another").write(RunRecord("quiet", params=(("p", "z" * 9_000),)))
    assert capfd.readouterr() == ("", "")
