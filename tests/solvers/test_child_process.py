"""The deadline holds whatever a solver does, and what it found before is kept (O17, O18, O20, O23)."""

import pickle
import sys
from pathlib import Path

import pytest
from slob_builders import fast_and_slow

from slob_opt.errors import SolverUnavailable
from slob_opt.problem.placement import Pipeline, Placement, Stage
from solvers.backend import BackendLimits, Ending
from solvers.child_process import ChildReport, run_in_child
from solvers.messages import OUT_OF_MEMORY, Backend, Bounded, Built, Finished, Found, Job, Message, Started, Unavailable

PLAN = Placement((Pipeline((Stage((0,), 0, 32),), 1, 1),))
BEFORE: list[Message] = [Started("0"), Built(1, 2, 3, 4.0, 2.0**-30), Found(PLAN), Bounded(0.01)]


def job(time_s: float | None = 60.0, backend: Backend = Backend.CPSAT, memory_bytes: int | None = None) -> Job:
    return Job(fast_and_slow().instance, backend, None, BackendLimits(time_s), memory_bytes)


def script(tmp_path: Path, messages: list[Message], then: str) -> list[str]:
    """A process that reads its job, says some messages and then behaves badly."""
    said = tmp_path / "said.pickle"
    said.write_bytes(b"".join(pickle.dumps(m) for m in messages))
    code = (
        "import os, signal, sys; sys.stdin.buffer.read(); signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"sys.stdout.buffer.write(open({str(said)!r}, 'rb').read()); sys.stdout.flush(); {then}"
    )
    return [sys.executable, "-c", code]


def test_process_that_ignores_its_limit_is_killed_and_keeps_plan_and_bound(tmp_path: Path) -> None:
    hang = "signal.pause()"
    report = run_in_child(job(0.3), grace_s=1.0, command=script(tmp_path, BEFORE, hang))
    assert report.was_killed
    assert report.ending is Ending.LIMIT
    assert [plan for _, plan in report.plans] == [PLAN]
    assert [bound for _, bound in report.bounds] == [0.01]
    assert report.finished is None


def test_process_that_dies_keeps_plan_and_bound_and_tells_its_exit_code(tmp_path: Path) -> None:
    report = run_in_child(job(), command=script(tmp_path, BEFORE, "os.kill(os.getpid(), signal.SIGSEGV)"))
    assert not report.was_killed
    assert report.ending is Ending.FAILED
    assert report.exit_code == -11
    assert [plan for _, plan in report.plans] == [PLAN]


def test_message_cut_off_in_the_middle_is_dropped(tmp_path: Path) -> None:
    report = run_in_child(job(), command=script(tmp_path, BEFORE, "sys.stdout.buffer.write(b'\\x80\\x05\\x95')"))
    assert report.ending is Ending.FAILED
    assert [bound for _, bound in report.bounds] == [0.01]


def test_process_that_dies_before_reading_its_job() -> None:
    report = run_in_child(job(), command=[sys.executable, "-c", "raise SystemExit(3)"])
    assert report.ending is Ending.FAILED
    assert report.exit_code == 3


def test_missing_back_end_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    messages: list[Message] = [Unavailable("CP-SAT needs OR-Tools: pip install 'slob[exact]'")]
    with pytest.raises(SolverUnavailable, match=r"pip install 'slob\[exact\]'"):
        run_in_child(job(), command=script(tmp_path, messages, "pass"))


@pytest.mark.parametrize("backend", [Backend.HIGHS, Backend.CPSAT])
def test_real_process_reports_times_and_size(backend: Backend) -> None:
    pytest.importorskip("ortools" if backend is Backend.CPSAT else "highspy", reason="pip install 'slob[exact]'")
    report = run_in_child(job(backend=backend))
    assert isinstance(report.finished, Finished)
    assert report.ending is Ending.FINISHED
    assert report.built is not None
    assert report.built.num_variables > 0
    assert min(report.start_s, report.build_s, report.solve_s) >= 0.0
    assert report.start_s > 0.0
    assert report.solver_version


@pytest.mark.parametrize(
    ("report", "memory_bytes", "sentence"),
    [
        (ChildReport(finished=Finished(Ending.FINISHED, "Optimal")), 2**30, ""),
        (ChildReport(finished=Finished(Ending.INFEASIBLE, "Infeasible")), 2**30, ""),
        (ChildReport(finished=Finished(Ending.LIMIT, "TimeLimit")), 2**30, "stopped by a limit"),
        (ChildReport(was_killed=True), None, "stopped by a limit"),
        (ChildReport(finished=Finished(Ending.LIMIT, OUT_OF_MEMORY, "too little")), 2**30, "too little"),
        (ChildReport(finished=Finished(Ending.FAILED, "refused", "too large")), None, "too large"),
        (ChildReport(exit_code=-6), None, "the solver's process died with code -6"),
        (
            ChildReport(exit_code=-6),
            2**30,
            "the solver's process died with code -6; its memory limit of 1GiB may be too small",
        ),
    ],
)
def test_why_a_run_stopped_is_one_sentence(report: ChildReport, memory_bytes: int | None, sentence: str) -> None:
    assert report.why_stopped(memory_bytes) == sentence
    assert report.met_memory_limit == (sentence == "too little")


def test_memory_cap_too_small_to_start_in_ends_in_words() -> None:
    """O18: the cap holds for the process, and running into it is a limit, not a crash of ours."""
    pytest.importorskip("ortools", reason="pip install 'slob[exact]'")
    report = run_in_child(job(memory_bytes=150 * 2**20))
    assert report.ending in (Ending.LIMIT, Ending.FAILED)
    assert not report.plans
    assert report.finished is None or "memory" in report.finished.reason


def test_folder_named_solvers_where_the_user_stands_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ortools", reason="pip install 'slob[exact]'")
    (tmp_path / "solvers").mkdir()
    (tmp_path / "solvers" / "__init__.py").write_text("raise SystemExit('foreign')")
    monkeypatch.chdir(tmp_path)
    assert run_in_child(job()).ending is Ending.FINISHED
