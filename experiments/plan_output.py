"""Plan files with the problem inside: :mod:`slob_opt.planning.plan_record` knows the format, here come the inputs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from experiments.comparison import Comparison, MethodOutcome
from experiments.plain_data import decode, encode
from experiments.problem_setup import ProblemOptions, ProblemSetup
from experiments.provenance import Provenance, collect
from slob_opt.cost.build import CostOptions, build_table
from slob_opt.errors import InputError
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import ThroughputObjective
from slob_opt.planning.plan_record import objective_from_json, plan_record
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.files.plan_file import PlanFile, plan_inputs, read_inputs
from slob_opt.problem.files.plan_file import write_plan as write_plan_file
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.traffic import TrafficProfile


def digest(value: object) -> str:
    """Return the SHA-256 of a part of the problem, hex, over its plain JSON."""
    return hashlib.sha256(json.dumps(encode(value), sort_keys=True).encode()).hexdigest()


def fingerprints_of(setup: ProblemSetup) -> dict[str, str]:
    """Return the SHA-256 of cluster, model and traffic, hex; a plan's record adds those of table and instance."""
    parts = {"cluster": setup.cluster, "model": setup.model, "traffic": setup.traffic}
    return {name: digest(part) for name, part in parts.items()}


def plan_of(comparison: Comparison, outcome: MethodOutcome, provenance: Provenance) -> PlanFile:
    """Return the content of a plan file for one method's plan, with all that is needed to check it alone."""
    setup = comparison.setup
    return plan_record(
        outcome.result,
        outcome.certificate,
        setup.instance,
        inputs=plan_inputs(
            setup.cluster,
            setup.model,
            setup.traffic,
            encode(setup.cost_options),
            encode_cluster=encode,
            encode_model=encode,
            encode_traffic=encode,
        ),
        fingerprints=fingerprints_of(setup),
        versions=dict(provenance.versions),
        commit=provenance.commit,
        created=provenance.created,
    )


def make_folder(path: Path) -> None:
    """Make a folder with its parents, unless it is there.

    Raises
    ------
    InputError
        When it can't be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder can't be made: {error.strerror}", file=str(path)) from error


def write_plan(path: Path, comparison: Comparison, outcome: MethodOutcome) -> None:
    """Write a method's plan to a file, whole or not at all; makes the folder.

    Raises
    ------
    InputError
        When the file can't be written.
    """
    make_folder(path.parent)
    write_plan_file(plan_of(comparison, outcome, collect()), path)


def setup_from_plan(plan: PlanFile, file: str) -> ProblemSetup:
    """Return the problem that a plan file carries.

    Raises
    ------
    InputError
        When the file carries no inputs or they are damaged.
    """
    cluster, model, traffic, given = read_inputs(
        plan,
        decode_cluster=lambda data: decode(Cluster, data),
        decode_model=lambda data: decode(ModelSpec, data),
        decode_traffic=lambda data: decode(TrafficProfile, data),
        file=file,
    )
    try:
        options = decode(CostOptions, given) if given else CostOptions()
    except InputError as error:
        raise InputError(error.message, file=file, key=f"inputs.options.{error.key}") from error
    table = build_table(cluster, model, traffic, options)
    said = ProblemOptions(cluster=file, model=file)
    objective = ThroughputObjective.for_traffic(traffic)
    instance = PlacementInstance(table, objective, f"{cluster.name}/{model.name}/{objective.name}")
    return with_objective_of(plan, ProblemSetup(said, cluster, model, traffic, options, instance), file)


def with_objective_of(plan: PlanFile, setup: ProblemSetup, file: str) -> ProblemSetup:
    """Return the problem with the objective that a plan file states, if it states one.

    Raises
    ------
    InputError
        When the objective is damaged.
    """
    if plan.objective is None:
        return setup
    try:
        return setup.with_objective(objective_from_json(plan.objective))
    except InputError as error:
        raise error.located(file=file, key="objective") from error
