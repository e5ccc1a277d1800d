"""What the micro-batches of a trace computed: prompts, output tokens, or both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from slob_opt.metrics.iterations import Iteration
from slob_opt.metrics.trace_reader import Trace
from slob_opt.problem.workload import Workload


class Phase(StrEnum):
    """What a micro-batch computes."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


def iteration_phases(iterations: Sequence[Iteration], workload: Workload) -> list[Phase]:
    """Return the phase of each iteration.

    A request decodes where it computes the one token that its KV cache lacks and the cache isn't empty. Everything else
    is prefill, also what a preempted request computes again. A prompt's last chunk, if it is a single token, counts as
    a decode: it costs as much.

    Parameters
    ----------
    iterations
        In the order in which their tokens were back.
    workload
        Whose requests they name.
    """
    prompt = workload.prompt_tokens
    cached: dict[int, int] = {}
    target: dict[int, int] = {}  # tokens to be in the cache when the next output token comes
    found = []
    for iteration in iterations:
        for request in iteration.preempted:
            cached[request] = 0
        has_prefill = has_decode = False
        for request, tokens in zip(iteration.requests, iteration.tokens, strict=True):
            before = cached.get(request, 0)
            goal = target.get(request)
            goal = prompt.item(request) if goal is None else goal
            if before + tokens > goal:  # it gave its cache up in a decision that launched nothing
                before = 0
            if before and goal - before == 1:
                has_decode = True
            else:
                has_prefill = True
            cached[request] = before + tokens
            target[request] = goal + (before + tokens >= goal)
        found.append(Phase.MIXED if has_prefill and has_decode else Phase.PREFILL if has_prefill else Phase.DECODE)
    return found


def placed_phases(trace: Trace) -> Iterator[tuple[Iteration, Phase]]:
    """Yield the iterations of a trace with their phases."""
    yield from zip(trace.iterations, iteration_phases(trace.iterations, trace.outcomes.workload), strict=True)
