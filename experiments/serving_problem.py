"""What a command's options say is served, and by what: a workload, and a placement from a plan file or planned now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.plan_output import fingerprints_of, setup_from_plan
from experiments.problem_setup import ProblemOptions, ProblemSetup, set_up
from experiments.registry import nearest
from experiments.serving_run import PolicyChoice
from experiments.serving_setup import ServingOptions, ServingSystem, make_system, plan_placement
from experiments.workload_source import PresetOptions, TraceOptions
from slob_opt.errors import InputError
from slob_opt.planning.plan_record import placement_of
from slob_opt.problem.files.find import find_model
from slob_opt.problem.files.plan_file import read_plan
from slob_opt.problem.files.traces import RowFault, TraceReport
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.placement import Placement
from slob_opt.problem.presets import preset_ids
from slob_opt.problem.workload import Workload

EXAMPLE = "example"
"""Name of the trace that ships with the package."""


@dataclass(frozen=True, slots=True)
class Source:
    """A workload by its options: a trace, or a sample of a preset; exactly one of them.

    Attributes
    ----------
    trace
        ``None`` for a preset.
    preset
        ``None`` for a trace.
    """

    trace: TraceOptions | None
    preset: PresetOptions | None

    def load(self, progress: Callable[[int], None] | None = None) -> tuple[Workload, TraceReport | None]:
        """Return the workload, and what became of a trace's rows."""
        if self.trace is not None:
            return self.trace.load(progress)
        assert self.preset is not None
        return self.preset.load(), None

    def effective(self) -> dict[str, object]:
        """Return plain JSON."""
        said = self.trace if self.trace is not None else self.preset
        assert said is not None
        return said.effective()


def is_preset(name: str) -> bool:
    """Return whether a workload's name is a preset's, and not a trace's.

    Raises
    ------
    InputError
        When it is neither: no preset, no file and not the example.
    """
    if name in preset_ids():
        return True
    if name == EXAMPLE or Path(name).exists():
        return False
    if "/" in name or "." in name:
        raise InputError("no such file; slob workload describe --help tells where traces are from", file=name)
    raise InputError(f"no preset or trace {name!r}{nearest(name, [*preset_ids(), EXAMPLE])}", key="--workload")


def with_model_limit(trace: TraceOptions, model: ModelSpec) -> TraceOptions:
    """Return the trace without rows over the model's longest context, which are counted and told, unless clipped."""
    if trace.max_tokens is not None or model.max_position is None:
        return trace
    skip = trace.skip if trace.is_clipping else tuple(dict.fromkeys((*trace.skip, RowFault.TOO_LONG)))
    return replace(trace, max_tokens=model.max_position, skip=skip)


@dataclass(frozen=True, slots=True)
class SystemSource:
    """A system by its options.

    Attributes
    ----------
    plan
        Plan file; ``None`` plans now.
    cluster, model
        Catalogue id or file; ``None`` takes what the plan carries.
    problem
        Further options of the problem when it's planned now; its cluster and model are those above.
    serving
        Lanes, rows, chunk, KV.
    """

    plan: Path | None
    cluster: str | None
    model: str | None
    problem: ProblemOptions
    serving: ServingOptions

    def __post_init__(self) -> None:
        if self.plan is None and (self.cluster is None or self.model is None):
            raise InputError("give --cluster and --model, or a --plan that carries them")
        if (self.cluster is None) != (self.model is None):
            missing = "--cluster" if self.cluster is None else "--model"
            raise InputError(f"--cluster and --model belong together; {missing} is missing, or leave both to the plan")

    def effective(self) -> dict[str, object]:
        """Return plain JSON: what was asked for."""
        said = self.problem
        return {
            "plan": None if self.plan is None else str(self.plan),
            "cluster": self.cluster,
            "model": self.model,
            "objective": None if self.plan is not None else said.objective,
            "in_flight": said.in_flight,
            "max_interval": said.max_interval,
            "weight_bits": said.weight_bits,
            "kv_bits": said.kv_bits,
            "tp": said.tp,
            "lanes": self.serving.num_lanes,
            "max_rows": self.serving.max_rows,
            "chunk_tokens": self.serving.chunk_tokens,
            "kv_blocks": self.serving.kv_blocks,
            "memory_utilization": self.serving.memory_utilization,
        }

    def model_spec(self) -> ModelSpec:
        """Return the model, before anything is planned."""
        if self.model is not None:
            return find_model(self.model)
        assert self.plan is not None
        return setup_from_plan(read_plan(self.plan), str(self.plan)).model

    def build(self, workload: Workload) -> tuple[ServingSystem, ProblemSetup]:
        """Return what serves, and the problem it was planned for.

        Without a plan and without lengths of their own the workload's mean lengths are planned for.

        Raises
        ------
        InputError
            When the plan is for another cluster or model, or there is no placement.
        """
        setup, placement = self._planned(workload) if self.plan is None else self.from_plan(self.plan)
        name = f"{setup.cluster.name}/{setup.model.name}"
        return make_system(name, setup.cluster, setup.model, placement, self.serving), setup

    def _planned(self, workload: Workload) -> tuple[ProblemSetup, Placement]:
        said, profile = self.problem, workload.profile()
        if said.traffic is None:
            prompt, output = said.prompt_tokens, said.output_tokens
            said = replace(
                said,
                prompt_tokens=profile.prompt_tokens if prompt is None else prompt,
                output_tokens=profile.output_tokens if output is None else output,
            )
        setup = set_up(said)
        placement = plan_placement(setup.cluster, setup.model, setup.traffic, setup.instance.objective)
        return setup, placement

    def from_plan(self, path: Path) -> tuple[ProblemSetup, Placement]:
        """Return the problem that a plan file carries, or that was named instead, and its placement.

        Raises
        ------
        InputError
            When the plan is for another cluster or model, or records that there is none.
        """
        plan, file = read_plan(path), str(path)
        setup = setup_from_plan(plan, file) if self.cluster is None else set_up(self.problem)
        own = fingerprints_of(setup)
        for part, given in (("cluster", setup.cluster.name), ("model", setup.model.name)):
            written = plan.fingerprints.get(part)
            if written is not None and written != own[part]:
                made_for = f" ({plan.name})" if plan.name else ""
                raise InputError(
                    f"the plan was made for another {part}{made_for}, fingerprint {written[:12]}; {given} has"
                    f" {own[part][:12]}",
                    file=file,
                )
        placement = placement_of(plan, setup.table, file=file)
        if placement is None:
            raise InputError("the file records that there is no plan", file=file)
        return setup, placement


def policy_choices(policies: str, params: Mapping[str, Mapping[str, object]], dispatcher: str) -> list[PolicyChoice]:
    """Return the policies named in a comma-separated list.

    Parameters
    ----------
    policies
        Names.
    params
        Parameters by policy.
    dispatcher
        One for all.

    Raises
    ------
    InputError
        When a name or parameter is unknown, a name stands twice, or parameters are for a policy that isn't named.
    """
    names = [name.strip() for name in policies.split(",")]
    if not all(names):
        raise InputError(f"found {policies!r}, expected names such as orca,slob", key="--policy")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{twice[0]!r} stands twice", key="--policy")
    strangers = [name for name in params if name not in names]
    if strangers:
        raise InputError(f"parameters are given for {strangers[0]!r}{nearest(strangers[0], names)}", key="--param")
    choices = [PolicyChoice(name, name, dispatcher, dict(params.get(name, {}))) for name in names]
    for choice in choices:
        choice.policies(1)  # raises what is wrong before anything is simulated
        choice.make_dispatcher(2, 0)
    return choices


def parse_params(texts: list[str], policies: str) -> dict[str, dict[str, object]]:
    """Return parameters by policy from texts ``name=value`` (of the only policy) or ``policy.name=value``.

    Examples
    --------
    >>> parse_params(["chunk_tokens=256"], "chunked"), parse_params(["slob.oldest_share=0"], "orca,slob")
    ({'chunked': {'chunk_tokens': '256'}}, {'slob': {'oldest_share': '0'}})

    Raises
    ------
    InputError
        When a text has another form, or doesn't say whose parameter it is.
    """
    names = [name.strip() for name in policies.split(",") if name.strip()]
    found: dict[str, dict[str, object]] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        policy, dot, name = left.strip().rpartition(".")
        if not equals or not name.strip() or not value.strip():
            raise InputError(f"found {text!r}, expected name=value or policy.name=value", key="--param")
        if not dot and len(names) != 1:
            raise InputError(f"{text!r} doesn't say whose it is; write policy.{text}", key="--param")
        owner = policy if dot else names[0]
        found.setdefault(owner, {})[name.strip()] = value.strip()
    return found
