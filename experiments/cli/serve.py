"""`slob serve`: the plan executed for real, behind an OpenAI-compatible server."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from experiments.cli import options as opt
from experiments.cli import screen
from experiments.cli import serve_options as sopt
from experiments.cli.environment import api_key_variable, model_cache, worker_token
from experiments.serving_problem import parse_params, policy_choices
from experiments.serving_setup import ServingOptions

if TYPE_CHECKING:
    from experiments.deploying import Deploying, ServeOptions
    from runtime.server import ServerOptions


def serve(  # noqa: PLR0917 - Typer makes an option of each parameter
    model: sopt.Model,
    plan: sopt.Plan = None,
    cluster: sopt.Cluster = None,
    objective: sopt.Objective = sopt.GoalName.THROUGHPUT,
    workers: sopt.Workers = None,
    on: sopt.On = None,
    dtype: sopt.Dtype = None,
    policy: sopt.PolicyName = "slob",
    param: sopt.Params = None,
    dispatcher: sopt.DispatcherName = "slob",
    padded: sopt.Padded = False,
    lanes: sopt.Lanes = None,
    max_rows: sopt.Rows = sopt.DEFAULT_ROWS,
    chunk: sopt.Chunk = 512,
    kv_blocks: sopt.KvBlocks = None,
    step_deadline: sopt.Deadline = 120.0,
    replan: sopt.Replan = True,
    host: sopt.Host = "127.0.0.1",
    port: sopt.Port = 8000,
    name: sopt.Name = None,
    api_key: sopt.ApiKey = None,
    max_waiting: sopt.MaxWaiting = 256,
    drain: sopt.Drain = 30.0,
    show_config: opt.ShowConfig = False,
) -> None:
    """Serve a model from the devices of a plan, with an OpenAI-compatible interface.

    Each device gets a worker process that holds its layers. A plan file says which; without one slob plans for
    --cluster, and without that the whole model is served from one device of this machine. SIGTERM and Ctrl-C let
    running answers end first.

    Example: slob serve --model smollm2-135m --plan plan.json --workers workers.yaml --port 8000
    """
    choice = policy_choices(policy, parse_params(param or [], policy), dispatcher)[0]
    devices = sopt.devices_of(on)
    # torch and the server take seconds to load: what is wrong above is told first.
    from experiments.deploying import LOCAL, ServeOptions
    from runtime.model_store import resolve_model
    from runtime.server import ServerOptions

    folder = resolve_model(model, model_cache())
    if plan is None and cluster is None and not devices:
        devices = {LOCAL: "cpu"}
    said = ServeOptions(
        folder, plan, cluster, workers, devices, objective.value, None if dtype is None else dtype.value, policy,
        dict(choice.params), dispatcher, {},
        ServingOptions(num_lanes=lanes, max_rows=max_rows, chunk_tokens=chunk, kv_blocks=kv_blocks), padded,
        step_deadline,
    )  # fmt: skip
    server = ServerOptions(
        name or folder.name, host, port, api_key or api_key_variable(), max_waiting=max_waiting, drain_s=drain
    )  # fmt: skip
    if show_config:
        screen.print_json(config_of(said, server))
        return
    run_server(said, server, replans=replan)


def config_of(said: ServeOptions, server: ServerOptions) -> dict[str, object]:
    """Return what will be used, as plain JSON; the key of the server isn't told."""
    return {
        "command": "serve",
        "model": str(said.folder),
        "plan": None if said.plan is None else str(said.plan),
        "cluster": said.cluster,
        "workers": None if said.workers is None else str(said.workers),
        "on": dict(said.devices),
        "objective": said.objective,
        "dtype": said.dtype,
        "policy": {"name": said.policy, "params": dict(said.params), "dispatcher": said.dispatcher},
        "serving": {
            "lanes": said.serving.num_lanes,
            "max_rows": said.serving.max_rows,
            "chunk_tokens": said.serving.chunk_tokens,
            "kv_blocks": said.serving.kv_blocks,
            "padded": said.is_padded,
            "step_deadline_s": said.deadline_s,
        },
        "server": {
            "name": server.model_name,
            "host": server.host,
            "port": server.port,
            "has_api_key": server.api_key is not None,
            "max_waiting": server.max_waiting,
            "drain_s": server.drain_s,
        },
    }


def run_server(said: ServeOptions, server: ServerOptions, *, replans: bool = True) -> None:
    """Serve until a signal says stop.

    Raises
    ------
    InputError
        When the port is taken, the plan doesn't fit the model or the devices, or a worker fails while it loads.
    """
    from experiments.deploying import check_profiles, deploying, engine_of
    from runtime.process_executor import ProcessExecutor
    from runtime.server import listen
    from runtime.server import serve as serve_http
    from runtime.text import TextCodec

    logging.basicConfig(level=logging.WARNING, format="slob: %(message)s")
    notes = screen.notes()

    def tell(line: str) -> None:
        notes.print(line, markup=False)

    with listen(server.host, server.port) as sock:  # a port that is taken is told before minutes of loading
        what = deploying(said)
        check_profiles(what.deployment)
        for line in described(what):
            tell(line)
        executor = ProcessExecutor(what.deployment.executor_spec(), worker_token())
        engine = engine_of(what, TextCodec(said.folder), executor, recovers=replans)
        engine.start(tell)
        try:
            serve_http(engine, replace(server, plan_gap=what.gap, plan_note=what.note), sock=sock, progress=tell)
        finally:
            engine.close()


def described(what: Deploying) -> list[str]:
    """Return lines that say what is served from where."""
    deployment = what.deployment
    lines = [f"{deployment.model.name} in {deployment.dtype}, policy {what.options.policy}"]
    for index, pipeline in enumerate(deployment.placement.pipelines):
        parts = []
        for stage in pipeline.stages:
            name = deployment.cluster.devices[stage.cards[0]].name
            place = deployment.place(name)
            seen = place.emulation.words
            parts.append(
                f"{name} layers {stage.first}-{stage.end - 1} on {place.torch_device}"
                + (f" (emulated: {seen})" if seen else "")
            )
        lines.append(f"pipeline {index}, {pipeline.num_micro_batches} in flight: " + ", ".join(parts))
    return lines
