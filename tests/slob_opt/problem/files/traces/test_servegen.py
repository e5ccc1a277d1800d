"""ServeGen's clients: sampled by rate, burstiness and lengths of each window, the same each time."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from reference_data import reference_file

from slob_opt.errors import InputError
from slob_opt.problem.files.traces import RowFault, read_trace
from slob_opt.problem.files.traces.servegen import windows_of
from slob_opt.problem.workload_stats import workload_stats

TRACE = "0,0,0,,0,0\n600,2.0,3.0,Gamma,0.4,9\n1200,0.5,0.5,Weibull,2.1,7\n1800,1.0,0,,0,0\n2400,0,0,,0,0\n"
DATASET = {
    "0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{5: 1.0}"},
    "21600": {"input_tokens": "{}", "output_tokens": "{}"},
}


def client(folder: Path, number: int = 1, trace: str = TRACE, dataset: object = DATASET) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"chunk-{number}-trace.csv"
    path.write_text(trace, encoding="utf-8")
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(dataset), encoding="utf-8")
    return path


def test_each_window_has_its_own_rate(tmp_path: Path) -> None:
    """Means over 30 seeds: 1200, 300 and 600 requests, whatever shape and scale say."""
    path = client(tmp_path)
    counts = np.zeros((30, 5))
    for seed in range(30):
        workload, report = read_trace(path, seed=seed)
        counts[seed] = np.histogram(workload.arrival_s, np.arange(6) * 600.0)[0]
        assert (report.kind, report.kept) == ("servegen", workload.num_requests)
    # standard deviations of a count: about sqrt(variation^2 x mean), so 104, 9 and 24; of their means, 5.5 times less
    assert counts.mean(axis=0) == pytest.approx([0, 1200, 300, 600, 0], abs=60)
    assert counts.mean(axis=0)[2] == pytest.approx(300, abs=6)
    assert counts[:, 1].std() > 3 * counts[:, 3].std() > 5 * counts[:, 2].std()


def test_lengths_follow_their_distribution(tmp_path: Path) -> None:
    workload, _ = read_trace(client(tmp_path), seed=3)
    assert set(workload.prompt_tokens.tolist()) == {10, 20}
    assert workload.prompt_tokens.mean() == pytest.approx(17.5, rel=0.03)
    assert set(workload.output_tokens.tolist()) == {5}


def test_the_same_seed_gives_the_same_requests_whatever_is_asked_for(tmp_path: Path) -> None:
    """A window of time, and further clients in the folder, change nothing of the requests that are there anyway."""
    path = client(tmp_path)
    whole, _ = read_trace(path, seed=7)
    again, _ = read_trace(path, seed=7)
    part, report = read_trace(path, seed=7, window_s=(900.0, 1500.0))
    assert whole.fingerprint == again.fingerprint != read_trace(path, seed=8)[0].fingerprint
    inside = (whole.arrival_s >= 900) & (whole.arrival_s < 1500)
    assert part.arrival_ns.tolist() == (whole.arrival_ns[inside] - 900 * 10**9).tolist()
    assert report.outside == 0
    client(tmp_path, 12)
    both, _ = read_trace(tmp_path, seed=7)
    assert set(whole.arrival_ns.tolist()) <= set(both.arrival_ns.tolist())
    assert both.name == tmp_path.name
    assert both.num_requests > 1.5 * whole.num_requests


def test_packed_files(tmp_path: Path) -> None:
    path = client(tmp_path)
    plain, _ = read_trace(path, seed=1)
    for file in list(tmp_path.iterdir()):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert read_trace(tmp_path / "chunk-1-trace.csv.gz", seed=1)[0].fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("trace", "dataset", "message"),
    [
        (TRACE.replace("Gamma", "gamma"), DATASET, r"chunk-1-trace.csv:2: found the law 'gamma', expected Gamma"),
        (TRACE.replace("2.0", "-2.0"), DATASET, r"chunk-1-trace.csv:2: found a negative number"),
        (TRACE.replace("2.0", "x"), DATASET, r"chunk-1-trace.csv:2: rate is 'x', expected a number"),
        (TRACE.replace("1200", "300"), DATASET, r"chunk-1-trace.csv:3: the window starts before"),
        (TRACE.replace(",9\n", "\n"), DATASET, r"chunk-1-trace.csv:2: found 5 cells, expected 6"),
        ("", DATASET, r"no rows"),
        ("0,0,0,,0,0\n", DATASET, r"no rows"),
        (TRACE, {"0": {}}, r"dataset.json: 0.input_tokens: found 'None', expected a text that holds"),
        (TRACE, {"0": {"input_tokens": "{}", "output_tokens": "{}"}}, r"0.input_tokens: found '{}', expected a text"),
        (
            TRACE,
            {"0": {"input_tokens": "__import__('os').getcwd()", "output_tokens": "{1: 1.0}"}},
            r"0.input_tokens: found .*, expected a text that holds",
        ),
        (TRACE, {"0": {"input_tokens": "{1: 0.5}", "output_tokens": "{1: 1.0}"}}, r"add up to 0.5, expected 1"),
        (TRACE, {"0": {"input_tokens": "{-1: 1.0}", "output_tokens": "{1: 1.0}"}}, r"found -1: 1.0, expected tokens"),
        (TRACE, {"900": DATASET["0"]}, r"no distribution of lengths for 600 s"),
        (TRACE, {"day 1": DATASET["0"]}, r"dataset.json: day 1: expected a window's start"),
        (TRACE, [1], r"dataset.json: found '\[1\]', expected an object"),
    ],
)
def test_faults_are_told_with_file_and_place(trace: str, dataset: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(client(tmp_path, 1, trace, dataset))


def test_a_trace_without_its_lengths_or_its_name(tmp_path: Path) -> None:
    path = client(tmp_path)
    (tmp_path / "chunk-1-dataset.json").unlink()
    with pytest.raises(InputError, match=r"chunk-1-dataset.json with the lengths is not beside it"):
        read_trace(path)
    other = path.rename(tmp_path / "mine.csv")
    with pytest.raises(InputError, match=r"expected a name as chunk-7-trace.csv"):
        read_trace(other, "servegen")


def test_sampled_rows_are_judged_like_others(tmp_path: Path) -> None:
    dataset = {"0": {"input_tokens": "{0: 0.5, 50: 0.5}", "output_tokens": "{5: 1.0}"}}
    path = client(tmp_path, dataset=dataset)
    with pytest.raises(InputError, match=r"chunk-1-trace.csv: found 0 prompt and 5 output tokens"):
        read_trace(path)
    _, report = read_trace(path, skip={RowFault.ZERO_TOKENS})
    assert report.num_skipped == pytest.approx(report.read / 2, rel=0.1)


def test_a_published_client() -> None:
    """Two weeks of a chat-like client: the requests that its windows' rates add up to, and its published means."""
    path = reference_file("traces/servegen/data/language/m-large/chunk-127-trace.csv.gz")
    expected = 600 * sum(window.rate for window in windows_of(path))
    workload, report = read_trace(path, seed=0)
    assert report.kept == pytest.approx(expected, rel=0.03)
    with reference_file("traces/derived/servegen_clients.csv").open(encoding="utf-8") as stream:
        rows = csv.DictReader(stream)
        row = next(r for r in rows if (r["category_model"], r["client_id"]) == ("language/m-large", "127"))
    stats = workload_stats(workload)
    assert stats.prompt_mean == pytest.approx(float(row["mean_in"]), rel=0.01)
    assert stats.output_mean == pytest.approx(float(row["mean_out"]), rel=0.01)
    assert stats.gap_cv is not None
    assert stats.gap_cv > 2  # rests between active windows
