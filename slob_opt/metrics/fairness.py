"""Fairness between clients: service in weighted tokens, its largest difference, and Jain's index.

References
----------
Sheng et al. 2024, Fairness in serving large language models, OSDI, arXiv 2401.00588 (virtual token counter): service of
a client is ``w_p`` times its input tokens plus ``w_q`` times its output tokens, with w_p = 1 and w_q = 2 in its
experiments; the input counts when the request is taken into a batch. The paper bounds the difference between clients
that both have requests waiting; clients that ask for less get less, which is no unfairness, so read the difference
beside what was asked for.
Jain, Chiu & Hawe 1984, A quantitative measure of fairness and discrimination for resource allocation, DEC TR-301.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.metrics.outcomes import Outcomes
from slob_opt.metrics.request_columns import RequestColumns

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ServiceWeights:
    """What a token counts as service.

    Attributes
    ----------
    prompt, output
        w_p and w_q, above zero; defaults as in Sheng et al. 2024.
    """

    prompt: float = 1.0
    output: float = 2.0

    def __post_init__(self) -> None:
        for name, value in (("prompt", self.prompt), ("output", self.output)):
            if not (np.isfinite(value) and value > 0):
                raise InputError(f"the weight of {name} tokens is {value}, expected a finite number above zero")


def service_by_client(
    columns: RequestColumns, client: IntArray, weights: ServiceWeights | None = None, share: FloatArray | None = None
) -> FloatArray:
    """Return (C,) weighted tokens that each client got.

    Parameters
    ----------
    columns
        Figures of N requests; prompts of those that were in a batch count.
    client
        (N,) int64, which of the C clients sent each, from 0.
    weights
        ``None`` takes the defaults.
    share
        (C,) above zero, what each client is entitled to; service is divided by it. ``None`` is the same for all.
    """
    weights = weights or ServiceWeights()
    prompts = np.where(np.isfinite(columns.queueing_s), columns.workload.prompt_tokens, 0)
    tokens = weights.prompt * prompts + weights.output * columns.delivered
    size = _num_clients(client, columns.status.size)
    found = np.bincount(client, weights=tokens, minlength=size)
    if share is None:
        return np.asarray(found)
    if share.shape != found.shape or not np.all(share > 0):
        raise InputError(f"share needs {found.size} numbers above zero, one for each client")
    return np.asarray(found / share)


def service_over_time(
    outcomes: Outcomes, client: IntArray, at_ns: IntArray, weights: ServiceWeights | None = None
) -> FloatArray:
    """Return (len(at_ns), C) weighted tokens that each client had got by some times, those times included.

    Parameters
    ----------
    outcomes
        A record.
    client
        (N,) int64, which of the C clients sent each, from 0.
    at_ns
        Times, nanoseconds.
    weights
        ``None`` takes the defaults.
    """
    weights = weights or ServiceWeights()
    size = _num_clients(client, outcomes.status.size)
    found = np.zeros((at_ns.size, size))
    owner = np.repeat(client, outcomes.num_tokens)
    for number in range(size):
        mine = outcomes.is_started & (client == number)
        order = np.argsort(outcomes.started_ns[mine], kind="stable")
        prompts = np.concatenate([[0], np.cumsum(outcomes.workload.prompt_tokens[mine][order])])
        taken = np.searchsorted(outcomes.started_ns[mine][order], at_ns, side="right")
        sent = np.searchsorted(np.sort(outcomes.token_ns[owner == number]), at_ns, side="right")
        found[:, number] = weights.prompt * prompts[taken] + weights.output * sent
    return found


def service_difference(service: FloatArray) -> float:
    """Return the largest difference between two clients, weighted tokens; over all rows when there are several.

    Parameters
    ----------
    service
        (C,), or (times, C) as :func:`service_over_time` gives it.
    """
    rows = np.atleast_2d(service)
    return float((rows.max(axis=1) - rows.min(axis=1)).max()) if rows.size else 0.0


def jain_index(service: FloatArray) -> float:
    """Return ``(sum x)^2 / (C sum x^2)``: 1 when all got the same, 1 / C when one got all; 1 when none got anything.

    Examples
    --------
    >>> jain_index(np.array([3.0, 3.0])), jain_index(np.array([1.0, 0.0, 0.0, 0.0]))
    (1.0, 0.25)
    """
    squares = float(np.dot(service, service))
    return float(service.sum()) ** 2 / (service.size * squares) if squares > 0 else 1.0


def _num_clients(client: IntArray, num_requests: int) -> int:
    """Return C; raises InputError when the column doesn't fit."""
    if client.shape != (num_requests,) or client.min() < 0:
        raise InputError(f"client needs {num_requests} numbers from 0, one for each request")
    return int(client.max()) + 1
