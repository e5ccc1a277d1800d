from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_setups import hand_outcomes, hand_workload, header, write_hand

from experiments.cli.main import main
from slob_opt.metrics.trace_writer import TraceWriter


def test_a_trace_becomes_a_timeline_and_a_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["timeline", str(write_hand(tmp_path / "one.trace.jsonl"))])
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"one.trace.jsonl", "one.chrome.json", "one-gantt.png", "one-gantt.svg"}
    assert str(tmp_path / "one-gantt.svg") in capsys.readouterr().out
    events = json.loads((tmp_path / "one.chrome.json").read_text(encoding="utf-8"))["traceEvents"]
    assert len([event for event in events if event["ph"] == "X"]) == 10


def test_a_window_cuts_both(tmp_path: Path) -> None:
    """The last two micro-batches start at 31 and 36 ns."""
    path = write_hand(tmp_path / "one.trace.jsonl")
    main(["timeline", str(path), "--from", "0.037us", "--until", "0.05us", "--out", str(tmp_path / "cut")])
    events = json.loads((tmp_path / "cut" / "one.chrome.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {event["args"]["iteration"] for event in events if event["ph"] == "X"} == {3, 4}
    assert len(list((tmp_path / "cut").iterdir())) == 3


def test_an_empty_window_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_hand(tmp_path / "one.trace.jsonl")
    with pytest.raises(SystemExit) as stopped:
        main(["timeline", str(path), "--from", "1s"])
    assert stopped.value.code == 2
    assert "nothing lies between --from and --until: 1 s and 6e-08 s of 6e-08 s" in capsys.readouterr().err


def test_a_run_that_computed_nothing_has_no_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.trace.jsonl"
    with TraceWriter(path, header()) as trace:
        for outcome in hand_outcomes():
            trace.outcome(hand_workload(), outcome)
        trace.finish(60)
    main(["timeline", str(path)])
    assert "no chart, the trace has no iteration" in capsys.readouterr().out


def test_a_broken_trace_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_hand(tmp_path / "one.trace.jsonl")
    path.write_text(path.read_text(encoding="utf-8").replace('"lane":1', '"lan":1', 1), encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        main(["timeline", str(path)])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"slob: {path}:3: lan: unknown key; did you mean lane?\n"
