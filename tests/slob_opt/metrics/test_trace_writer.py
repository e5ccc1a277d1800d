from __future__ import annotations

from pathlib import Path

import pytest
from trace_setups import hand_iterations, header, write_hand

from slob_opt.errors import InputError
from slob_opt.metrics.trace_header import TraceHeader, TracePipeline, TraceStage
from slob_opt.metrics.trace_writer import TraceWriter


def test_nothing_is_left_of_a_trace_that_was_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with TraceWriter(path, header()) as trace:
        trace.iteration(hand_iterations()[0])
    assert list(tmp_path.iterdir()) == []


def test_an_exception_keeps_the_old_file(tmp_path: Path) -> None:
    path = write_hand(tmp_path / "t.jsonl")
    before = path.read_bytes()

    def broken() -> None:
        with TraceWriter(path, header()) as trace:
            trace.finish(5)
            raise RuntimeError("the engine died")

    with pytest.raises(RuntimeError, match="the engine died"):
        broken()
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_equal_traces_are_equal_bytes(tmp_path: Path) -> None:
    assert write_hand(tmp_path / "a.jsonl").read_bytes() == write_hand(tmp_path / "b.jsonl").read_bytes()


def test_nothing_follows_the_end(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.jsonl", header()) as trace:
        trace.finish(5)
        with pytest.raises(InputError, match="the trace is closed"):
            trace.iteration(hand_iterations()[0])


def test_a_folder_or_a_missing_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no regular file"), TraceWriter(tmp_path, header()):
        pass
    with pytest.raises(InputError, match="can't be written"), TraceWriter(tmp_path / "none" / "t.jsonl", header()):
        pass


def test_a_header_is_checked_when_it_is_made() -> None:
    with pytest.raises(InputError, match=r"layers \[3, 3\)"):
        TraceStage(("a",), 3, 3)
    with pytest.raises(InputError, match="begins at layer 1, expected 0"):
        TracePipeline(1, (TraceStage(("a",), 1, 3),))
    with pytest.raises(InputError, match="0 lanes"):
        TracePipeline(0, (TraceStage(("a",), 0, 3),))
    with pytest.raises(InputError, match="names no pipeline"):
        TraceHeader("runtime", "w", "c", "m", "orca", None, "ragged", 0, ())
    assert TraceStage(("a/0", "a/1"), 0, 3).name == "a/0+a/1"
