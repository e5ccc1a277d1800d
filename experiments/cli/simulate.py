"""`slob simulate`: a workload served in simulation, under one policy or several side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.text import Text

from experiments.cli import options as opt
from experiments.cli import screen
from experiments.cli import simulate_options as sopt
from experiments.cli import workload_options as wopt
from experiments.cli.environment import tracking_uri
from experiments.cli.simulate_screen import policy_table, print_rejections, print_system
from experiments.compare_output import write_json
from experiments.plan_output import make_folder
from experiments.provenance import Provenance, collect
from experiments.serving_load import offered_rate, probe
from experiments.serving_output import point_row, requests_csv, run_summary, write_lines
from experiments.serving_problem import Source, SystemSource, parse_params, policy_choices, with_model_limit
from experiments.serving_records import SCHEMA_VERSION, Simulated, simulation_records
from experiments.serving_run import Alone, PolicyChoice, RunOptions, serve, served_alone
from experiments.serving_setup import ServingSystem
from experiments.serving_trace import write_trace_files
from experiments.store_location import store_location
from experiments.tracking import TrackingStore
from experiments.workload_output import report_json, report_sentence, stats_json
from slob_opt.errors import TrackingError
from slob_opt.problem.files.traces import TraceReport
from slob_opt.problem.workload import NS_PER_S, Workload
from slob_opt.problem.workload_stats import workload_stats
from slob_opt.simulation.options import EngineOptions

DEFAULT_FOLDER = Path("runs") / "simulate"


def simulate(  # noqa: PLR0917 - Typer makes an option of each parameter
    workload: sopt.Workload,
    cluster: sopt.Cluster = None,
    model: sopt.Model = None,
    plan: sopt.Plan = None,
    objective: sopt.Objective = None,
    in_flight: opt.InFlight = None,
    max_interval: opt.MaxInterval = None,
    weight_bits: opt.WeightBits = None,
    kv_bits: opt.KvBits = None,
    memory_utilization: opt.MemoryUtilization = None,
    tp: opt.Tp = None,
    load: sopt.Load = None,
    rate: sopt.Rate = None,
    duration: sopt.Duration = None,
    daily: sopt.Daily = False,
    variant: sopt.Variant = None,
    trace_format: wopt.TraceFormat = None,
    skip: wopt.Skip = None,
    clip: wopt.Clip = False,
    max_requests: wopt.MaxRequests = None,
    since: wopt.Since = None,
    until: wopt.Until = None,
    arrivals: wopt.Arrivals = None,
    cv: wopt.Cv = None,
    on: wopt.On = None,
    off: wopt.Off = None,
    thin: wopt.Thin = None,
    stretch: wopt.Stretch = None,
    thin_to: wopt.ThinTo = None,
    stretch_to: wopt.StretchTo = None,
    policy: sopt.Policies = "slob",
    param: sopt.Params = None,
    dispatcher: sopt.DispatcherName = "slob",
    engine: sopt.Engine = sopt.EngineKind.RAGGED,
    lanes: sopt.Lanes = None,
    max_rows: sopt.Rows = sopt.DEFAULT_ROWS,
    chunk: sopt.Chunk = sopt.DEFAULT_CHUNK,
    kv_blocks: sopt.KvBlocks = None,
    noise: sopt.Noise = 0.0,
    seed: sopt.Seed = 0,
    horizon: sopt.Horizon = "10min",
    format: opt.Format = opt.OutputFormat.TABLE,
    out: sopt.OutFolder = None,
    trace: sopt.Trace = False,
    no_track: opt.NoTrack = False,
    experiment: opt.Experiment = None,
    show_config: opt.ShowConfig = False,
) -> None:
    """Serve a workload in simulation and show how satisfied its clients are.

    Takes a plan file, or plans a placement with slob. Several policies meet the same requests, side by side. Writes
    summary.json and requests.csv.

    Example: slob simulate -c lab-3 -m llama-2-7b -w office_chat --load 4 -p orca,chunked,slob
    """
    given: dict[str, Any] = dict(locals())
    source, system = sopt.source_of(given), sopt.system_source(given)
    choices = policy_choices(policy, parse_params(param or [], policy), dispatcher)
    grace_s = wopt.seconds(horizon, "--horizon", allow_zero=True)
    is_padded = engine is sopt.EngineKind.PADDED
    folder = DEFAULT_FOLDER if out is None else out
    output = opt.OutputOptions(format, folder, None if no_track else experiment or "slob-simulate")
    config = {
        "command": "simulate",
        "workload": {**source.effective(), "load": load},
        "system": system.effective(),
        "policies": [choice.effective() for choice in choices],
        "engine": {"kind": engine.value, "noise": noise},
        "horizon_s": grace_s,
        "seed": seed,
        "output": {**output.effective(), "trace": trace},
    }
    if show_config:
        screen.print_json(config)
        return
    make_folder(folder)
    store = None
    if output.experiment is not None:
        store = TrackingStore.open(store_location(folder, tracking_uri()), output.experiment)
    found, report, built = _prepare(source, system, load)
    options = RunOptions(
        EngineOptions(is_padded=is_padded, noise=noise, seed=seed),
        int(found.arrival_ns[-1]) + round(grace_s * NS_PER_S),
        seed=seed,
    )
    simulated, alone = _simulate(found, built, choices, options)
    provenance = collect()
    summary = _json(config, found, report, built, simulated, alone, provenance)
    path = folder / "summary.json"
    write_json(path, summary)
    write_lines(folder / "requests.csv", requests_csv([item.run for item in simulated], alone))
    traces = _write_traces(folder, found, built, choices, options) if trace else []
    trouble = _track(store, config, provenance, simulated, path)
    if format is opt.OutputFormat.JSON:
        screen.print_json(summary)
    else:
        _show(found, report, built, simulated, alone)
        print(f"summary: {path}")
        for file in traces:
            print(f"trace: {file}")
        print(f"store: {'not tracked' if store is None or trouble else store.location.uri}")
    if trouble is not None:
        raise TrackingError(f"{trouble}; the summary is saved in {path}") from trouble


def _prepare(
    source: Source, system: SystemSource, load: float | None
) -> tuple[Workload, TraceReport | None, ServingSystem]:
    """Load the workload and plan for it; a load in requests in flight needs the system first, to know its rate."""
    with screen.notes().status("reading the workload") as status:
        if source.trace is not None:
            source = replace(source, trace=with_model_limit(source.trace, system.model_spec()))
        said = source.preset
        if load is None or said is None:
            found, report = source.load(lambda rows: status.update(f"reading the workload: {rows:,} rows"))
            status.update("planning" if system.plan is None else "reading the plan")
            return found, report, system.build(found)[0]
        status.update("planning" if system.plan is None else "reading the plan")
        built, _ = system.build(probe(said.preset, said.variant))
        status.update("measuring requests alone")
        rate = offered_rate(said.preset, built, load, said.variant)
        found, report = replace(source, preset=replace(said, rate_per_s=rate)).load()
    return found, report, built


def _simulate(
    found: Workload, system: ServingSystem, choices: list[PolicyChoice], options: RunOptions
) -> tuple[list[Simulated], Alone]:
    """Serve the workload under each policy, with a line of progress on stderr."""
    simulated = []
    with screen.notes().status("measuring requests alone") as status:
        alone = served_alone(found, system, options.spec)
        for index, choice in enumerate(choices):
            status.update(f"{choice.label} ({index + 1}/{len(choices)}): {found.num_requests:,} requests")
            run = serve(found, system, choice, options)
            summary = run_summary(run, alone, options.spec, has_qoe=options.has_qoe)
            simulated.append(Simulated(run, summary, point_row(run, summary)))
    return simulated, alone


def _write_traces(
    folder: Path, found: Workload, system: ServingSystem, choices: list[PolicyChoice], options: RunOptions
) -> list[Path]:
    """Simulate again, step by step, and write what each policy did; return the trace files."""
    written = []
    with screen.notes().status("writing traces") as status:
        for choice in choices:
            status.update(f"writing the trace of {choice.label}")
            written.append(write_trace_files(folder, found, system, choice, options, name=choice.label).trace)
    return written


def _json(
    config: Mapping[str, object],
    found: Workload,
    report: TraceReport | None,
    system: ServingSystem,
    simulated: list[Simulated],
    alone: Alone,
    provenance: Provenance,
) -> dict[str, object]:
    """The answer with stable keys."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "simulate",
        "workload": {
            "name": found.name,
            "fingerprint": found.fingerprint,
            "stats": stats_json(workload_stats(found)),
            "report": None if report is None else report_json(report),
        },
        "system": system.effective(),
        "service_s": alone.service_s if alone.service_s > 0 else None,
        "mean_alone_satisfaction": float(alone.satisfaction.mean()),
        "policies": [item.as_json() for item in simulated],
        "config": dict(config),
        "provenance": provenance.as_json(),
    }


def _track(
    store: TrackingStore | None,
    config: Mapping[str, object],
    provenance: Provenance,
    simulated: list[Simulated],
    path: Path,
) -> TrackingError | None:
    """Store a parent run with a child a policy; return what went wrong, since the summary is saved already."""
    if store is None:
        return None
    parent, children = simulation_records(config, provenance, simulated, str(path))
    try:
        with screen.notes().status("storing the run"):
            parent_id = store.start(parent)
            for child in children:
                store.write(child, parent_run_id=parent_id)
            store.finish(parent_id)
    except TrackingError as error:
        return error
    return None


def _show(
    found: Workload, report: TraceReport | None, system: ServingSystem, simulated: list[Simulated], alone: Alone
) -> None:
    """The finding for people."""
    console = screen.printer()
    stats = workload_stats(found)
    console.print(
        Text.assemble(
            (system.name, "bold"),
            f" serves {found.name}: {found.num_requests:,} requests in {wopt.span_text(stats.span_s)}, "
            f"{wopt.figure(stats.rate)} req/s",
        )
    )
    print_system(console, system)
    if alone.service_s > 0 and stats.rate is not None:
        console.print(
            f"alone a request takes {alone.service_s:.3g} s and has S {alone.satisfaction.mean():.4f} on average;"
            f" offered are {stats.rate * alone.service_s:.3g} requests in flight"
        )
    if report is not None:
        console.print(Text(report_sentence(report)))
    console.print(policy_table(simulated))
    print_rejections(console, simulated)
