"""Workloads written and read back: nothing is lost, the same bytes each time, and faults with their line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slob_opt.errors import InputError
from slob_opt.problem.files.traces import read_trace
from slob_opt.problem.files.workload_file import write_workload
from slob_opt.problem.presets import sample_preset
from slob_opt.problem.workload import Workload

NAMES = ("w.csv", "w.jsonl", "w.csv.gz", "w.jsonl.gz")
HEADER = '{"schema_version": 1, "kind": "slob-workload", "name": "w"}'
TABLE = f"# {HEADER}\narrival_ns,prompt_tokens,output_tokens\n0,1,2\n5,3,4\n"
LINES = (
    f'{HEADER}\n{{"arrival_ns": 0, "prompt_tokens": 1, "output_tokens": 2}}\n'
    '{"arrival_ns": 5, "prompt_tokens": 3, "output_tokens": 4}\n'
)


def workloads() -> st.SearchStrategy[Workload]:
    """Workloads of up to six requests, some with priorities, targets and conversations."""

    def column(low: float, high: float) -> st.SearchStrategy[list[float]]:
        return st.lists(st.floats(low, high, allow_subnormal=False), min_size=6, max_size=6)

    def build(times, prompts, outputs, priority, ttft, tpot, session) -> Workload:  # type: ignore[no-untyped-def]
        size = len(times)

        def floats(values):  # type: ignore[no-untyped-def]
            return None if values is None else np.array(values[:size])

        out = np.array(outputs[:size])
        return Workload(
            'a name, "quoted" and\nbroken – ü',
            np.sort(np.array(times)),
            np.array(prompts[:size]),
            out,
            out + 7,
            np.ones(size) if priority is None else np.array(priority[:size]),
            floats(ttft),
            floats(tpot),
            None if session is None else np.array(session[:size]),
        )

    counts = st.lists(st.integers(1, 10**6), min_size=6, max_size=6)
    return st.builds(
        build,
        st.lists(st.integers(0, 2**61), min_size=1, max_size=6),
        counts,
        counts,
        st.none() | column(1e-6, 1e6),
        st.none() | column(1e-9, 1e3),
        st.none() | column(1e-9, 1e3),
        st.none() | counts,
    )


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(workload=workloads())
def test_what_is_written_reads_back_equal(name: str, tmp_path: Path, workload: Workload) -> None:
    path = tmp_path / name
    write_workload(path, workload)
    found, report = read_trace(path)
    assert (found.name, found.fingerprint) == (workload.name, workload.fingerprint)
    assert (report.kind, report.kept) == (f"slob-{name.split('.')[1]}", workload.num_requests)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_workload_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    workload = sample_preset("doc_summary", 4, days=0.2)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_workload(tmp_path / folder / name, workload)
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert [p.name for p in (tmp_path / "a").iterdir()] == [name]


def test_a_file_reads_like_this(tmp_path: Path) -> None:
    workload = Workload.of("w", [0.0, 1.5], [10, 20], [3, 4], max_new_tokens=8, ttft_s=1.0)
    write_workload(tmp_path / "w.csv", workload)
    assert (tmp_path / "w.csv").read_text(encoding="utf-8") == (
        f"# {HEADER}\narrival_ns,prompt_tokens,output_tokens,max_new_tokens,ttft_s\n"
        "0,10,3,8,1.0\n1500000000,20,4,8,1.0\n"
    )
    write_workload(tmp_path / "w.jsonl.gz", workload)
    assert gzip.decompress((tmp_path / "w.jsonl.gz").read_bytes()).decode().splitlines()[1] == (
        '{"arrival_ns": 0, "prompt_tokens": 10, "output_tokens": 3, "max_new_tokens": 8, "ttft_s": 1.0}'
    )


@pytest.mark.parametrize("text", [TABLE, LINES], ids=["csv", "jsonl"])
def test_by_hand_three_columns_do(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text(text, encoding="utf-8")
    workload, _ = read_trace(path)
    assert (workload.arrival_ns.tolist(), workload.max_new_tokens.tolist()) == ([0, 5], [1024, 1024])
    assert workload.priority.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TABLE.replace('"schema_version": 1', '"schema_version": 2'), "t:1: schema_version: found 2, expected 1"),
        (TABLE.replace('"name"', '"nam"'), "t:1: nam: unknown key 'nam'; did you mean 'name'"),
        (TABLE.replace("slob-workload", "plan"), "t:1: kind: found 'plan', expected 'slob-workload'"),
        (TABLE.replace("output_tokens", "output_token"), "t:2: column output_tokens missing; .*'output_token'"),
        (TABLE.replace("output_tokens", "output_tokens,prioriti"), "t:2: unknown column 'prioriti'; .*'priority'"),
        (TABLE.replace("5,3,4", "5,3"), "t:4: found 2 cells, expected 3"),
        (TABLE.replace("5,3,4", "5.5,3,4"), "t:4: arrival_ns is 5.5, expected whole nanoseconds"),
        (TABLE.replace("5,3,4", "5,x,4"), "t:4: prompt_tokens is 'x', expected a whole number"),
        (TABLE.replace("5,3,4", "5,1_0,4"), "t:4: prompt_tokens is '1_0', expected a whole number"),
        (TABLE.replace("5,3,4", "5,0,4"), "t:4: found 0 prompt and 4 output tokens"),
        (TABLE.replace("5,3,4", "-5,3,4"), "t:4: time is -5e-09 s, expected at least 0"),
        (TABLE.replace("output_tokens", "output_tokens,priority").replace(",2\n", ",2,0\n"), "t:3: priority is 0, exp"),
        (TABLE.replace("output_tokens", "output_tokens,ttft_s").replace(",2\n", ",2,inf\n"), "t:3: ttft_s is inf"),
        (
            TABLE.replace("output_tokens", "output_tokens,max_new_tokens").replace(",2\n", ",2,1\n"),
            "t:3: max_new_tokens is 1, less than output_tokens of 2",
        ),
        (TABLE[: TABLE.index("arrival")], "t: no rows"),
        (LINES.replace('"prompt_tokens": 3', '"prompt": 3'), "t:3: key prompt_tokens missing; .*'prompt'"),
        (LINES.replace('"output_tokens": 4', '"output_tokens": 4, "session": 1'), "t:3: unknown key 'session'"),
        (LINES.replace('"output_tokens": 4', '"output_tokens": true'), "t:3: output_tokens is True, expected a whole"),
        (LINES.replace('"output_tokens": 4', '"output_tokens": "4"'), "t:3: output_tokens is '4', expected a whole"),
        (LINES.replace('{"arrival_ns": 5', '["arrival_ns", 5'), "t:3: not valid JSON"),
        (LINES[: LINES.index("\n") + 1], "t: no rows"),
    ],
)
def test_faults_are_told_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_trace(path)


def test_other_names_and_missing_folders_are_refused(tmp_path: Path) -> None:
    workload = Workload.of("w", [0.0], [1], [1])
    with pytest.raises(InputError, match=r"ends with \.csv, \.jsonl"):
        write_workload(tmp_path / "w.json", workload)
    with pytest.raises(InputError, match="can't be written"):
        write_workload(tmp_path / "none" / "w.csv", workload)


def test_a_failure_on_the_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text("old", encoding="utf-8")

    def stop(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_workload(path, Workload.of("w", [0.0], [1], [1]), progress=stop)
    assert path.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["w.csv"]
