"""`slob compare`: many methods on one or more instances."""

from __future__ import annotations

import time
from pathlib import Path

import typer
from rich.console import Console

from experiments.cli import options as opt
from experiments.cli import screen
from experiments.cli.environment import tracking_uri
from experiments.cli.problem import problem_options
from experiments.compare_output import CompareFiles, save_comparison, save_report, track_comparisons
from experiments.comparison import Comparison
from experiments.comparison import compare as compare_methods
from experiments.demo_suite import SUITES, suite
from experiments.problem_setup import ProblemOptions, ProblemSetup, set_up
from experiments.provenance import Provenance, collect
from experiments.registry import parse_methods
from experiments.report import report_json
from experiments.store_location import StoreLocation, store_location
from experiments.tracking import BUSY_WAIT_S, TrackingStore
from slob_opt.errors import InputError, TrackingError
from slob_opt.planning.result import SolveLimits

DEFAULT_OUT = Path("runs/compare")


def compare(  # noqa: PLR0917 - Typer makes an option of each parameter
    cluster: opt.Clusters = None,
    model: opt.Models = None,
    suite: opt.Suite = None,
    traffic: opt.Traffic = None,
    prompt_tokens: opt.PromptTokens = None,
    output_tokens: opt.OutputTokens = None,
    context_tokens: opt.ContextTokens = None,
    objective: opt.ObjectiveOption = opt.ObjectiveName.THROUGHPUT,
    in_flight: opt.InFlight = None,
    max_micro_batches: opt.MaxMicroBatches = None,
    max_interval: opt.MaxInterval = None,
    max_in_flight: opt.MaxInFlight = None,
    weight_bits: opt.WeightBits = None,
    kv_bits: opt.KvBits = None,
    kv_mode: opt.KvModeOption = None,
    memory_utilization: opt.MemoryUtilization = None,
    batch_grid: opt.BatchGrid = None,
    tp: opt.Tp = None,
    methods: opt.Methods = None,
    time_limit: opt.TimeLimit = 60.0,
    memory_limit: opt.MemoryLimit = None,
    seed: opt.Seed = 0,
    workers: opt.Workers = 1,
    format: opt.Format = opt.OutputFormat.TABLE,
    out: opt.OutFolder = DEFAULT_OUT,
    no_track: opt.NoTrack = False,
    experiment: opt.Experiment = None,
    show_config: opt.ShowConfig = False,
) -> None:
    """Run many methods and prove how good each plan is.

    Give --cluster and --model as often as there are instances (one of them may stand for all), or --suite demo. Saves a
    plan.json per method, a layer map and the gap over time as PNG and SVG, and report.json; stores the run in MLflow.
    Exit code 1 when an instance has no plan or methods contradict each other.

    Example: slob compare --cluster helix-single24 --model llama-2-70b --methods slob,even,parametric --out runs/first
    """
    given = dict(locals())
    problems = _problems(given, cluster or [], model or [], suite)
    chosen = parse_methods(methods)
    limits = opt.solve_limits(time_limit, memory_limit, seed, workers)
    output = opt.OutputOptions(format, out, None if no_track else experiment or "slob-compare")
    setups = tuple(set_up(problem) for problem in problems)
    config: dict[str, object] = {
        "command": "compare",
        "suite": suite,
        "instances": [setup.effective() for setup in setups],
        "methods": list(chosen) if chosen is not None else "all",
        "limits": opt.limits_config(limits),
        "output": output.effective(),
    }
    if show_config:
        screen.print_json(config)
        return
    folder = out if out is not None else DEFAULT_OUT
    store = None
    if output.experiment is not None:
        location = store_location(folder, tracking_uri())
        with screen.notes().status(f"opening the tracking store {location.uri}"):
            store = TrackingStore.open(location, output.experiment, busy_wait_s=BUSY_WAIT_S)
    provenance = collect()
    started = time.monotonic()
    pairs = _run(setups, chosen, limits, folder, format)
    comparisons = tuple(comparison for comparison, _ in pairs)
    files = tuple(saved for _, saved in pairs)
    report = report_json("compare", config, provenance, comparisons)
    report_path = save_report(folder, report, files)
    trouble = _track(store, config, provenance, pairs, report_path, time.monotonic() - started)
    if format is opt.OutputFormat.JSON:
        screen.print_json(report)
    else:
        _end(screen.printer(), files, report_path, None if store is None or trouble else store.location)
    if trouble is not None:
        raise TrackingError(f"{trouble}; plans and report are saved in {folder}") from trouble
    if any(c.best is None or c.disagreements for c in comparisons):
        raise typer.Exit(1)


def _problems(
    given: dict[str, object], clusters: list[str], models: list[str], suite_name: str | None
) -> tuple[ProblemOptions, ...]:
    """One set of options per instance."""
    if suite_name is not None:
        if clusters or models:
            raise InputError("--suite brings its own clusters and models; leave out --cluster and --model")
        pairs = suite(suite_name)
    else:
        if not clusters or not models:
            raise InputError(f"give --cluster and --model, or --suite ({', '.join(SUITES)})")
        count = max(len(clusters), len(models))
        if len(clusters) not in (1, count) or len(models) not in (1, count):
            raise InputError(f"{len(clusters)} clusters and {len(models)} models; give as many of each, or one for all")
        pairs = tuple(zip(_stretch(clusters, count), _stretch(models, count), strict=True))
    return tuple(problem_options(given, cluster=cluster, model=model) for cluster, model in pairs)


def _stretch(texts: list[str], count: int) -> list[str]:
    return texts if len(texts) == count else texts * count


def _run(
    setups: tuple[ProblemSetup, ...],
    methods: tuple[str, ...] | None,
    limits: SolveLimits,
    folder: Path,
    format: opt.OutputFormat,
) -> tuple[tuple[Comparison, CompareFiles], ...]:
    """Compare instance by instance; each one is shown and saved before the next starts."""
    done = []
    for index, setup in enumerate(setups):
        label = f"{setup.instance.name} ({index + 1}/{len(setups)})"
        with screen.notes().status(label) as status:
            comparison = compare_methods(
                setup,
                methods,
                limits,
                progress=lambda method, label=label, status=status: status.update(f"{label}: {method}"),  # type: ignore[misc]
            )
            status.update(f"{label}: saving")
            files = save_comparison(folder, comparison)
        if format is opt.OutputFormat.TABLE:
            screen.print_comparison(screen.printer(), comparison)
        done.append((comparison, files))
    return tuple(done)


def _track(
    store: TrackingStore | None,
    config: dict[str, object],
    provenance: Provenance,
    pairs: tuple[tuple[Comparison, CompareFiles], ...],
    report_path: Path,
    wall_s: float,
) -> TrackingError | None:
    """Store everything; return what went wrong, since plans and report are saved already."""
    if store is None:
        return None
    try:
        with screen.notes().status("storing the run"):
            track_comparisons(store, config, provenance, pairs, report_path, wall_s)
    except TrackingError as error:
        return error
    return None


def _end(console: Console, files: tuple[CompareFiles, ...], report_path: Path, location: StoreLocation | None) -> None:
    """Paths of what was written."""
    for saved in files:
        console.print(f"plans and plots: {saved.folder}", soft_wrap=True)
    console.print(f"report: {report_path}", soft_wrap=True)
    console.print(f"store: {location.uri}" if location is not None else "store: not tracked", soft_wrap=True)
