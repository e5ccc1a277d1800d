"""Every option of every command has an effect on what is recorded and on what is solved; one without is a failure."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

from experiments import registry
from experiments.cli.main import COMMANDS, load_command
from experiments.cli.number_options import number, whole
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import SolveLimits, SolveResult, Status
from slob_opt.problem.placement import Placement

Slob = Callable[..., Any]
NOT_RECORDED = {"help", "show_config"}  # these end the command before there is anything to record

# Changed value, and what must stand beside it on both sides so that the option has a meaning.
PROBLEM: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "traffic": (("--traffic", "TRAFFIC"), ()),
    "prompt_tokens": (("--prompt-tokens", "500"), ()),
    "output_tokens": (("--output-tokens", "100"), ()),
    "context_tokens": (("--context-tokens", "3000"), ()),
    "objective": (("--objective", "latency"), ()),
    "in_flight": (("--in-flight", "3"), ("--objective", "interval")),
    "max_micro_batches": (("--max-micro-batches", "5"), ()),
    "max_interval": (("--max-interval", "150ms"), ()),
    "max_in_flight": (("--max-in-flight", "none"), ()),
    "weight_bits": (("--weight-bits", "8"), ()),
    "kv_bits": (("--kv-bits", "8"), ()),
    "kv_mode": (("--kv-mode", "tight"), ()),
    "memory_utilization": (("--memory-utilization", "0.8"), ()),
    "batch_grid": (("--batch-grid", "1,2,4"), ()),
    "tp": (("--tp", "2"), ("--cluster", "llmpq-11")),
}
SEARCH: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "methods": (("--methods", "even"), ()),
    "time_limit": (("--time-limit", "1"), ()),
    "memory_limit": (("--memory-limit", "4GiB"), ()),
    "seed": (("--seed", "7"), ()),
    "workers": (("--workers", "2"), ()),
}
OUTPUT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "format": (("--format", "json"), ()),
    "out": (("--out", "elsewhere"), ()),
    "no_track": (("--no-track",), ()),
    "experiment": (("--experiment", "mine"), ()),
    "what_if": (("--what-if",), ()),
    "export": (("--export", "vllm"), ()),
    "suite": (("--suite", "demo"), ("--out", "x")),
    "quick": (("--quick",), ()),
    "file": (("--file", "mine.yaml"), ()),
}
CHANGES = PROBLEM | SEARCH | OUTPUT


def option_names(command: str) -> list[str]:
    """Options of a command as its own parser has them."""
    return [
        p.name for p in load_command(command).params if p.param_type_name == "option" and p.name not in NOT_RECORDED
    ]


def config(slob: Slob, *argv: str) -> dict[str, Any]:
    """The effective configuration that a call would record."""
    answer = slob(*argv, "--show-config")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


@pytest.fixture
def traffic(tmp_path: Path) -> str:
    path = tmp_path / "traffic.yaml"
    path.write_text("schema_version: 1\nprompt_tokens: 333\n", encoding="utf-8")
    return str(path)


def arguments(tiny: tuple[str, ...], extra: tuple[str, ...], traffic: str) -> tuple[str, ...]:
    """Cluster, model and extra options; a cluster in `extra` stands for the tiny one."""
    base = list(tiny)
    rest = list(extra)
    if "--cluster" in rest:
        at = rest.index("--cluster")
        base[1] = rest[at + 1]
        del rest[at : at + 2]
    return tuple(traffic if word == "TRAFFIC" else word for word in (*base, *rest))


CASES = [
    (command, name)
    for command in ("plan", "compare", "study")
    for name in option_names(command)
    if name not in {"cluster", "model"}
]


@pytest.mark.parametrize(("command", "name"), CASES)
def test_every_option_changes_the_recorded_configuration(
    command: str, name: str, slob: Slob, tiny: tuple[str, ...], traffic: str
) -> None:
    """Case O27."""
    assert name in CHANGES, f"option {name} of {command} is new: say here what it changes"
    change, beside = CHANGES[name]
    if command == "study":
        study = "paper" if name == "file" else "gap"
        before, after = config(slob, "study", study, *beside), config(slob, "study", study, *beside, *change)
    elif name == "suite":
        before, after = config(slob, command, *tiny, *beside), config(slob, command, *beside, *change)
    else:
        before = config(slob, command, *arguments(tiny, beside, traffic))
        after = config(slob, command, *arguments(tiny, (*beside, *change), traffic))
    assert before != after


@pytest.mark.parametrize("name", sorted(PROBLEM))
def test_every_option_of_the_problem_changes_what_is_solved(
    name: str, slob: Slob, tiny: tuple[str, ...], traffic: str
) -> None:
    """Not only what is written down: the fingerprint covers all numbers of the cost table and the objective."""
    change, beside = PROBLEM[name]
    if name == "kv_mode":
        beside = ("--context-tokens", "8192")
        tiny = (*tiny[:3], "gemma-2-2b")  # sliding windows of 4,096 tokens
    before = config(slob, "plan", *arguments(tiny, beside, traffic))["problem"]
    after = config(slob, "plan", *arguments(tiny, (*beside, *change), traffic))["problem"]
    assert before["instance_fingerprint"] != after["instance_fingerprint"]


@pytest.mark.parametrize(("option", "value"), [("--cluster", "lab-3"), ("--model", "tinyllama-1.1b")])
def test_cluster_and_model_change_what_is_solved(
    option: str, value: str, slob: Slob, tiny: tuple[str, ...], traffic: str
) -> None:
    other = list(tiny)
    other[other.index(option) + 1] = value
    before, after = config(slob, "plan", *tiny)["problem"], config(slob, "plan", *other)["problem"]
    assert before["table_fingerprint"] != after["table_fingerprint"]


class Spy:
    """A planner that notes what it was given and finds nothing."""

    name = "even"
    seen: tuple[PlacementInstance, SolveLimits | None] | None = None

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        Spy.seen = instance, limits
        return SolveResult("even", Status.UNKNOWN, None, None, None, 0.0, message="only a spy")


def test_limits_and_bits_reach_the_solver(slob: Slob, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Case O27."""
    entry = registry.PlannerEntry("even", f"{__name__}:Spy", "baseline", "a spy")
    monkeypatch.setitem(registry.PLANNERS, "even", entry)
    monkeypatch.setattr(registry, "load_target", lambda target: Spy)
    common = ("plan", *tiny, "--methods", "even")
    wide = slob(
        *common, "--time-limit", "1", "--memory-limit", "2GiB", "--seed", "5", "--workers", "3", "--kv-bits", "16"
    )
    assert Spy.seen is not None
    instance, limits = Spy.seen
    assert limits == SolveLimits(1.0, 2 * 2**30, 5, 3)
    slob(*common, "--kv-bits", "4", "--time-limit", "0")
    other, unlimited = Spy.seen
    assert unlimited is not None
    assert unlimited.time_s is None
    assert 4 * other.table.kv_bytes.sum() == instance.table.kv_bytes.sum()
    assert wide.code == 1
    assert "only a spy" in wide.out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("--in-flight", "2"), "--in-flight belongs to --objective interval"),
        (("--objective", "latency", "--in-flight", "2"), "latency is the interval of one sequence in flight"),
        (("--objective", "latency", "--max-interval", "1s"), "--max-interval belongs to --objective throughput"),
        (("--max-interval", "400"), "--max-interval: found '400' without a unit"),
        (("--max-in-flight", "few"), "--max-in-flight is 'few', expected a whole number from 1 or none"),
        (("--batch-grid", "1,b"), "--batch-grid is '1,b', expected whole numbers"),
        (("--tp", "2"), "--tp 2: the largest node of cluster tiny has 1 equal card"),
        (("--memory-limit", "4"), "--memory-limit: found '4' without a unit"),
        (("--methods", "parametrik"), "no planner 'parametrik'; did you mean 'parametric'?"),
        (("--max-in-flight", "0"), "--max-in-flight is '0', expected a whole number from 1 or none"),
        (("--in-flight", "0"), "--in-flight: found '0', expected a whole number from 1 to 65,536"),
        (("--memory-utilization", "1.5"), "--memory-utilization: found '1.5', expected a number above 0 and at most 1"),
        (("--time-limit", "nan"), "--time-limit: found 'nan', expected a number of at least 0"),
        (("--objective", "lat"), "--objective: 'lat' is not one of 'latency', 'interval', 'throughput'"),
    ],
)
def test_an_option_without_effect_or_sense_is_refused(
    argv: tuple[str, ...], sentence: str, slob: Slob, tiny: tuple[str, ...]
) -> None:
    answer = slob("plan", *tiny, *argv)
    assert answer.code == 2
    assert answer.out == ""
    assert sentence in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def commands() -> dict[str, object]:
    """Functions by command; those of a group as ``group command``."""
    found: dict[str, object] = {}
    for command in COMMANDS:
        target = getattr(importlib.import_module(f"experiments.cli.{command}"), command)
        if isinstance(target, typer.Typer):
            found |= {f"{command} {info.callback.__name__}": info.callback for info in target.registered_commands}
        else:
            found[command] = target
    return found


def numeric_options(function: object) -> list[tuple[str, bool]]:
    """(Option, whether it is whole) of a command, by the types of its parameters."""
    found = []
    for name, hint in get_type_hints(function).items():
        kinds = set(get_args(hint) or (hint,)) - {type(None)}
        if kinds & {int, float}:
            found.append((f"--{name.replace('_', '-')}", int in kinds))
    return found


NUMERIC = [
    (command, option, is_whole)
    for command, function in commands().items()
    for option, is_whole in numeric_options(function)
]


def test_numeric_options_are_found() -> None:
    assert {command for command, _, _ in NUMERIC} >= {"plan", "compare", "validate", "study", "workload sample"}
    assert ("study", "--workers", True) in NUMERIC
    assert ("plan", "--time-limit", False) in NUMERIC


@pytest.mark.parametrize(("command", "option", "is_whole"), NUMERIC)
@pytest.mark.parametrize("value", ["-1", "x", "", "nan", "inf", "1e999", "1.5", "9" * 40, "9" * 5_000])
def test_a_number_that_an_option_can_t_take_is_one_sentence(
    command: str, option: str, is_whole: bool, value: str, slob: Slob, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    """All in the form of the files' errors: where, what was found, what was expected."""
    if not is_whole and (value == "1.5" or (option == "--time-limit" and value == "9" * 40)):
        value = "-0.5"
    first = {
        "study": ("gap",),
        "validate": (str(tmp_path / "plan.json"), *tiny),
        "workload describe": ("example",),
        "workload convert": ("example", f"--out={tmp_path / 'out.csv'}"),
        "workload sample": ("office_chat",),
        "calibrate": ("--model", "tiny-llama"),
    }.get(command, tiny)
    answer = slob(*command.split(), *first, f"{option}={value}")
    assert (answer.code, answer.out) == (2, "")
    assert re.fullmatch(rf"slob: {option}: found '{value}', expected a (whole )?number .*\n", answer.err), answer.err
    assert ("whole" in answer.err) == is_whole


@pytest.mark.parametrize(
    ("parse", "good"),
    [
        (whole(1, 9), {"1": 1, "9": 9, " +3 ": 3, 4: 4}),
        (number(above=0, most=1), {"1": 1.0, "0.25": 0.25, "1e-3": 1e-3}),
        (number(least=0), {"0": 0.0, 60.0: 60.0}),
    ],
)
def test_numbers_within_limits_are_taken(parse: Callable[[object], float], good: dict[object, float]) -> None:
    assert {text: parse(text) for text in good} == good


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ((), "missing argument 'name'; see slob study --help"),
        (("gap", "more"), "got unexpected extra argument(s) (more); see slob study --help"),
        (("gap", "--nope"), "no such option: --nope"),
        (("gap", "--seed"), "option '--seed' requires an argument"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_without_the_usage(
    argv: tuple[str, ...], sentence: str, slob: Slob
) -> None:
    answer = slob("study", *argv)
    assert answer.code == 2
    last = answer.err.strip().splitlines()[-1]
    assert last.startswith(f"slob: {sentence}")
    assert "Usage" not in answer.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, slob: Slob) -> None:
    answer = slob(command, "--help")
    assert answer.code == 0
    assert f"Example: slob {command}" in " ".join(answer.out.split())
