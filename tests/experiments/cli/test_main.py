"""Start-up: what is imported when, exit codes, warnings."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from experiments.cli import main as entry
from experiments.cli.main import COMMANDS, load_command
from slob_opt.errors import PlausibilityWarning

Slob = Callable[..., Any]

HEAVY = {
    "torch",
    "mlflow",
    "matplotlib",
    "pulp",
    "ortools",
    "highspy",
    "pandas",
    "sqlalchemy",
    "optuna",
    "transformers",
}


def modules_after(*argv: str) -> set[str]:
    """Top-level packages and our own modules that a call of `slob` has imported, in a process of its own."""
    code = (
        "import sys\n"
        "from experiments.cli.main import main\n"
        "try:\n"
        f"    main({list(argv)!r})\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "ours = ('experiments', 'slob_opt', 'solvers', 'runtime')\n"
        "print('\\n@@@', *sorted(m if m.split('.')[0] in ours else m.split('.')[0] for m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("@@@")[2].split())


def test_help_imports_no_command_and_nothing_heavy() -> None:
    """The list of commands is told by stand-ins; numpy alone would double the start-up time."""
    modules = modules_after("--help")
    assert not modules & (HEAVY | {"numpy", "scipy", "pydantic", "yaml", "rich"})
    assert {m for m in modules if m.startswith("experiments.")} == {
        "experiments.cli",
        "experiments.cli.main",
        "experiments.package_origin",
    }
    assert {m for m in modules if m.startswith("slob_opt.")} == {"slob_opt.errors"}


def test_plan_imports_neither_torch_nor_mlflow(tiny: tuple[str, ...]) -> None:
    """With the exact search, in files, as JSON."""
    modules = modules_after("plan", *tiny, "--methods", "parametric,even", "--format", "json")
    assert not modules & HEAVY
    assert "experiments.cli.compare" not in modules
    assert "experiments.tracking" not in modules


def test_a_foreign_package_does_not_shadow_ours_silently(tmp_path: Any) -> None:
    """A folder `solvers` in front of ours: every command refuses in one sentence, and doctor tells it as broken."""
    (tmp_path / "solvers").mkdir()
    (tmp_path / "solvers" / "__init__.py").write_text("", encoding="utf-8")

    def call(*argv: str) -> subprocess.CompletedProcess[str]:
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from experiments.cli.main import main; "
        return subprocess.run(
            [sys.executable, "-c", f"{code}main({list(argv)!r})"], capture_output=True, text=True, check=False
        )

    done = call("plan", "--cluster", "lab-3", "--model", "llama-2-7b")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"slob: a foreign package shadows ours: solvers from {tmp_path / 'solvers'}")
    assert len(done.stderr.strip().splitlines()) == 1
    found = call("doctor", "--format", "json")
    assert found.returncode == 1
    assert "a foreign package shadows ours" in found.stdout
    assert call("--version").returncode == 0


def test_plan_stays_small(tiny: tuple[str, ...]) -> None:
    """Peak resident memory outside exact solves, as the system counts it, below 400 MB.

    Read as the high-water mark of the process's own memory: `ru_maxrss` starts at that of the process that started it.
    """
    code = (
        "from experiments.cli.main import main\n"
        "try:\n"
        f"    main({['plan', '--cluster', 'helix-single24', '--model', 'llama-2-70b', '--methods', 'even']!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        "print('@@@', next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.rpartition("@@@")[2]) * 1024 < 400e6


@pytest.mark.parametrize("name", COMMANDS)
def test_a_stand_in_says_what_its_command_says(name: str) -> None:
    assert (load_command(name).help or "").strip().splitlines()[0] == COMMANDS[name]


def test_the_version_is_told(slob: Slob) -> None:
    from slob_opt import __version__

    assert slob("--version").out.strip() == f"slob {__version__}"


@pytest.mark.parametrize("argv", [("plann",), ("plan",), ("plan", "--no-such-option"), ("catalog", "cars")])
def test_a_wrong_command_line_is_exit_code_2(argv: tuple[str, ...], slob: Slob) -> None:
    answer = slob(*argv)
    assert answer.code == 2
    assert answer.out == ""


def test_a_wrong_command_is_told_the_nearest(slob: Slob) -> None:
    assert "Did you mean 'plan'?" in " ".join(slob("plann").err.split())


@pytest.mark.parametrize(
    ("changed", "value", "sentence"),
    [
        ("--cluster", "no-such.yaml", "no-such.yaml: no such file"),
        ("--cluster", "helix-single42", "helix-single24"),
        ("--model", "llama-2-71b", "llama-2-70b"),
        ("--traffic", "no-such-traffic.yaml", "no-such-traffic.yaml"),
    ],
)
def test_missing_input_is_exit_code_2_and_no_silent_default(
    changed: str, value: str, sentence: str, slob: Slob, tiny: tuple[str, ...]
) -> None:
    """Case L13."""
    argv = [*tiny, "--traffic", value] if changed == "--traffic" else list(tiny)
    if changed in argv:
        argv[argv.index(changed) + 1] = value
    answer = slob("plan", *argv)
    assert answer.code == 2
    assert answer.out == ""
    assert sentence in answer.err
    assert "Traceback" not in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_a_folder_that_can_t_be_written_is_one_sentence(slob: Slob, tiny: tuple[str, ...], tmp_path: Any) -> None:
    (tmp_path / "taken").write_text("", encoding="utf-8")
    answer = slob("plan", *tiny, "--methods", "even", "--out", tmp_path / "taken" / "plan.json")
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_our_warnings_are_one_sentence(slob: Slob, monkeypatch: pytest.MonkeyPatch) -> None:
    def command() -> None:
        warnings.warn("memory is 24GB, usual is 24GiB", PlausibilityWarning, stacklevel=1)

    monkeypatch.setattr(entry, "make_app", lambda: lambda **options: command())
    assert slob().err == "slob: warning: memory is 24GB, usual is 24GiB\n"
