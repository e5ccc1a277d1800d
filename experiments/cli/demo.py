"""`slob demo`: from measuring this machine to an answer, on two devices that it pretends to have."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from experiments.cli import screen
from experiments.cli.environment import model_cache, tracking_uri
from experiments.compare_output import write_json
from experiments.plan_output import make_folder
from experiments.provenance import collect
from experiments.run_record import RunRecord
from experiments.store_location import store_location
from experiments.tracking import TrackingStore
from slob_opt.errors import InputError
from slob_opt.problem.workload import Workload

SMALL, TINY = "smollm2-135m", "tiny-llama"

QUESTION = "What is the capital of France?"

SLOWDOWNS = "1.5,3"
"""Of the two devices; together they compute 1.0 cores' worth of time, so two cores are enough."""


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for what is made.")] = Path("runs") / "demo-served",
    model: Annotated[str | None, typer.Option("--model", "-m", help=f"Default: {SMALL}, or {TINY} offline.")] = None,
) -> None:
    """Plan, prove and serve a real model on two unequal devices that this machine emulates.

    Measures the machine, plans for two devices of different speed, serves from two worker processes, streams a chat
    answer, and replays a short workload to compare measured times with simulated ones.

    Example: slob demo
    """
    from experiments.cli.main import main as slob

    make_folder(out)
    name = _model(model)
    from runtime.model_store import resolve_model

    folder = resolve_model(name, model_cache())
    cluster, plan, workers = out / "box.yaml", out / "plan.json", out / "workers.yaml"
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) * 2  # bfloat16 there, float32 here
    memory = f"{int(0.7 * weights / 2**20) + 90}MiB"
    _call(slob, ["calibrate", "--model", name, "--quick", "--out", str(out / "profile.json"), "--cluster-out",
                 str(cluster), "--workers-out", str(workers), "--slowdown", SLOWDOWNS, "--memory", memory])  # fmt: skip
    _call(slob, ["plan", "--cluster", str(cluster), "--model", str(folder), "--weight-bits", "32", "--kv-bits", "32",
                 "--objective", "latency", "--out", str(plan)])  # fmt: skip
    _serve(folder, plan, workers, out)


def _model(wanted: str | None) -> str:
    """Return which model is served, fetched if it can be."""
    from runtime.model_store import fetch_model

    if wanted is not None:
        return wanted
    notes = screen.notes()
    try:
        fetch_model(SMALL, model_cache(), progress=lambda line: notes.print(line, markup=False))
    except (InputError, OSError) as error:
        notes.print(f"{SMALL} can't be fetched ({error}): serving {TINY}, whose answers are noise", markup=False)
        return TINY
    return SMALL


def _call(slob: object, argv: list[str]) -> None:
    """Run a command as a user would, and say which."""
    assert callable(slob)
    screen.printer().print(f"\n$ slob {' '.join(argv)}", markup=False, style="bold")
    slob(argv)


def _serve(folder: Path, plan: Path, workers: Path, out: Path) -> None:
    from experiments.cli.serve import described
    from experiments.deploying import ServeOptions, deploying
    from experiments.measured_run import MeasuredEngine, measured_figures, simulated_figures, system_of
    from runtime.process_executor import ProcessExecutor

    console, notes = screen.printer(), screen.notes()
    console.print(f"\n$ slob serve --model {folder} --plan {plan} --workers {workers} --dtype float32", style="bold")
    what = deploying(ServeOptions(folder, plan, None, workers, dtype="float32"))
    for line in described(what):
        console.print(line, markup=False)
    served = MeasuredEngine(what, ProcessExecutor(what.deployment.executor_spec()))
    engine = served.engine
    engine.start(lambda line: notes.print(line, markup=False))
    try:
        console.print(f"\n> {QUESTION}", style="bold")
        first_s, total_s = _chat(engine)
        console.print(f"(first token after {first_s:.2f} s, whole answer after {total_s:.2f} s, emulated devices)")
        workload = demo_workload()
        console.print(f"\nreplaying {workload.num_requests} requests, about {workload.arrival_ns[-1] / 1e9:.0f} s ...")
        served.run(workload, out / "trace.jsonl")
        measured = measured_figures(out / "trace.jsonl")
        simulated = simulated_figures(workload, system_of(what, engine), what)
    finally:
        engine.close()
    names = [name for name in measured if name in simulated and name in SHOWN]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("", "simulated", "measured"):
        table.add_column(head, justify="left" if not head else "right")
    for name in names:
        table.add_row(name, f"{simulated[name]:.3f}", f"{measured[name]:.3f}")
    console.print(table)
    summary = {
        "schema_version": 1,
        "command": "demo",
        "model": folder.name,
        "is_emulated": True,
        "plan": what.note,
        "first_token_s": first_s,
        "simulated": {name: simulated[name] for name in names},
        "measured": {name: measured[name] for name in names},
        "provenance": collect().as_json(),
    }
    write_json(out / "summary.json", summary)
    _track(out, summary)
    console.print(f"summary, plan, profile and trace: {out}", markup=False)


SHOWN = (
    "mean_satisfaction", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_e2el_ms",
)  # fmt: skip
"""Figures that are compared, by the names of the summary."""


def _chat(engine: object) -> tuple[float, float]:
    """Stream one answer to the terminal; return seconds to its first token and to its end."""
    import queue

    from runtime.engine import Engine
    from runtime.generation import EndEvent, GenerationRequest, TokenEvent

    assert isinstance(engine, Engine)
    events: queue.SimpleQueue[TokenEvent | EndEvent] = queue.SimpleQueue()
    began = time.monotonic()
    prompt = tuple(engine.codec.chat([{"role": "user", "content": QUESTION}]))
    engine.submit(GenerationRequest(prompt, 48), events.put)
    first_s = None
    while True:
        event = events.get()
        print(event.text, end="", flush=True)
        if isinstance(event, EndEvent):
            print(flush=True)
            return first_s or 0.0, time.monotonic() - began
        first_s = first_s or time.monotonic() - began


def demo_workload() -> Workload:
    """Return eight short requests over about twenty seconds, some of which overlap."""
    rng = np.random.default_rng(7)
    arrivals = np.sort(rng.uniform(0.0, 20.0, 8))
    prompts = rng.integers(10, 60, 8)
    outputs = rng.integers(8, 24, 8)
    return Workload.of("demo", arrivals, prompts, outputs)


def _track(out: Path, summary: dict[str, object]) -> None:
    """Store the run."""
    store = TrackingStore.open(store_location(out, tracking_uri()), "slob-demo")
    measured = summary["measured"]
    assert isinstance(measured, dict)
    metrics = tuple((name, float(measured[name])) for name in ("mean_satisfaction",) if name in measured)
    params = (("model", str(summary["model"])), ("plan", str(summary["plan"])))
    store.write(RunRecord("demo", (("command", "demo"), ("emulated", "true")), params, metrics,
                          files=(("", str(out / "summary.json")),)))  # fmt: skip
