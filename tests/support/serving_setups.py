"""Small serving setups: clocks whose times are known by hand, real clocks, and workloads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.cost.roofline import CardGroup
from slob_opt.cost.stage_clock import PS_PER_NS, StageClock, Work
from slob_opt.problem.catalogue.gpus import gpu_device
from slob_opt.problem.catalogue.models import model
from slob_opt.problem.device import Link
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policy import PipelineLimits, Policy
from slob_opt.simulation.delivery import Delivery
from slob_opt.simulation.simulator import EngineOptions, SimulationResult, Simulator

LLAMA = model("llama-3.1-8b")


class FixedStage(StageClock):
    """A stage that takes `fixed_ns` and `token_ns` a computed token, whatever else is in the batch."""

    def __init__(self, fixed_ns: int, token_ns: int = 0, kv_ps: int = 0) -> None:
        super().__init__(CardGroup(gpu_device("l4", "n/0")), LLAMA, 0, 1)
        self.fixed_ns, self.token_ns = fixed_ns, token_ns
        self.kv_ps = (kv_ps,)

    def ps(self, work: Work) -> int:
        return (self.fixed_ns + self.token_ns * work.tokens) * PS_PER_NS + self.kv_ps[0] * work.kv_tokens[0]


FAST = Link(1e18, 0.0)
"""A link that takes no time."""


def fixed_clock(*stages: tuple[int, ...], link: Link = FAST) -> PipelineClock:
    clocks = [FixedStage(*stage) for stage in stages]
    return PipelineClock(clocks, [link] * (len(clocks) - 1), link if len(clocks) > 1 else None)


def one_card(gpu: str = "a100-sxm4-80gb") -> PipelineClock:
    return PipelineClock([StageClock(CardGroup(gpu_device(gpu, "n/0")), LLAMA, 0, LLAMA.num_layers)], [], None)


def four_cards() -> PipelineClock:
    parts = (("a100-pcie-40gb", 0, 14), ("l4", 14, 20), ("rtx-3090", 20, 28), ("t4", 28, 32))
    stages = [StageClock(CardGroup(gpu_device(gpu, "n/0")), LLAMA, first, end) for gpu, first, end in parts]
    link = Link(1.25e9, 1e-4)
    return PipelineClock(stages, [link] * 3, link)


def chat(num_requests: int, rate: float, seed: int = 0, *, max_output: int = 1000) -> Workload:
    """Poisson arrivals with lengths like a chat's."""
    rng = np.random.default_rng(seed)
    output = rng.lognormal(4.6, 0.7, num_requests).clip(1, max_output).astype(int)
    prompt = rng.lognormal(6.0, 1.0, num_requests).clip(3, 3000).astype(int)
    return Workload.of("chat", np.cumsum(rng.exponential(1 / rate, num_requests)), prompt, output, max_new_tokens=1024)


@dataclass(frozen=True)
class Played:
    """A simulation and what it handed over, by request."""

    result: SimulationResult
    deliveries: dict[int, Delivery]

    def times(self, request: int) -> list[int]:
        return [int(t) for t in self.deliveries[request].token_ns]


def play(
    workload: Workload, policy: Policy, clock: PipelineClock, limits: PipelineLimits, *, horizon_ns: int | None = None,
    **options: object,
) -> Played:  # fmt: skip
    """Simulate one pipeline."""
    found: list[Delivery] = []
    simulator = Simulator(
        workload, [limits], [clock], [policy], sink=found.append, horizon_ns=horizon_ns,
        options=EngineOptions(**{"keeps_log": True, **options}),  # type: ignore[arg-type]
    )  # fmt: skip
    result = simulator.run()
    assert len({d.request for d in found}) == len(found) == workload.num_requests
    return Played(result, {d.request: d for d in found})
