"""Requests as they arrive: columns of arrival times, lengths, priorities and service targets."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.traffic import TrafficProfile

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Workload:
    """N requests in order of arrival.

    Attributes
    ----------
    name
        Shown in reports.
    arrival_ns
        (N,) int64, nanoseconds from the start of the workload; not falling.
    prompt_tokens
        (N,) int64, from 1.
    output_tokens
        (N,) int64, from 1: the true length, which no policy sees.
    max_new_tokens
        (N,) int64, the client's limit, at least the true length.
    priority
        (N,) float64, weights above zero; 1 is normal.
    ttft_s, tpot_s
        (N,) float64, seconds: service targets of each request; ``None`` where the metric's defaults hold.
    session
        (N,) int64, requests of one conversation share a number; ``None`` when nothing is known of sessions.

    Examples
    --------
    >>> w = Workload.of("two", [0.0, 1.5], [100, 20], [10, 5])
    >>> w.num_requests, w.span_s, w.max_new_tokens.tolist()
    (2, 1.5, [10, 5])
    """

    name: str
    arrival_ns: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    max_new_tokens: IntArray
    priority: FloatArray
    ttft_s: FloatArray | None = None
    tpot_s: FloatArray | None = None
    session: IntArray | None = None

    def __post_init__(self) -> None:
        size = self.arrival_ns.shape
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, np.ndarray):
                continue
            if value.ndim != 1 or value.shape != size:
                raise InputError(f"{item.name} has shape {value.shape}, expected {size}")
            value.setflags(write=False)
        if self.arrival_ns.size == 0:
            raise InputError(f"workload {self.name!r} has no request")
        if self.arrival_ns[0] < 0:
            raise InputError(f"request 0 arrives at {self.arrival_ns[0] / NS_PER_S} s, expected a time from 0")
        late = np.flatnonzero(np.diff(self.arrival_ns) < 0)
        if late.size:
            raise InputError(f"request {late[0] + 1} arrives before request {late[0]}, expected order of arrival")
        for name in ("prompt_tokens", "output_tokens"):
            bad = np.flatnonzero(getattr(self, name) < 1)
            if bad.size:
                raise InputError(f"request {bad[0]} has {getattr(self, name)[bad[0]]} {name}, expected at least 1")
        bad = np.flatnonzero(self.max_new_tokens < self.output_tokens)
        if bad.size:
            raise InputError(
                f"request {bad[0]} puts out {self.output_tokens[bad[0]]} tokens, more than its max_new_tokens of"
                f" {self.max_new_tokens[bad[0]]}"
            )
        for name in ("priority", "ttft_s", "tpot_s"):
            value = getattr(self, name)
            bad = np.flatnonzero([] if value is None else ~(np.isfinite(value) & (value > 0)))
            if bad.size:
                raise InputError(f"request {bad[0]} has {name} {value[bad[0]]}, expected a finite number above zero")

    @classmethod
    def of(
        cls,
        name: str,
        arrival_s: FloatArray | list[float],
        prompt_tokens: IntArray | list[int],
        output_tokens: IntArray | list[int],
        *,
        max_new_tokens: IntArray | list[int] | int | None = None,
        priority: FloatArray | list[float] | None = None,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
        session: IntArray | None = None,
    ) -> Workload:
        """Return a workload of plain columns, arrivals in seconds; raises InputError when a column is wrong.

        Parameters
        ----------
        max_new_tokens
            A limit for all (raised to the true length where that is longer) or one each; ``None`` takes the true
            lengths.
        priority
            ``None`` is 1 for all.
        ttft_s, tpot_s
            One target for all; ``None`` sets none.
        """
        arrival = np.asarray(arrival_s, np.float64)
        if not np.all(np.isfinite(arrival)):
            raise InputError(f"workload {name!r} has an arrival time that is not finite")
        output = np.array(output_tokens, np.int64)
        size = arrival.size
        if max_new_tokens is None:
            limit = output.copy()
        elif isinstance(max_new_tokens, int):
            limit = np.maximum(np.full(size, max_new_tokens, np.int64), output)
        else:
            limit = np.array(max_new_tokens, np.int64)
        return cls(
            name,
            np.rint(arrival * NS_PER_S).astype(np.int64),
            np.array(prompt_tokens, np.int64),
            output,
            limit,
            np.ones(size) if priority is None else np.array(priority, np.float64),
            None if ttft_s is None else np.full(size, float(ttft_s)),
            None if tpot_s is None else np.full(size, float(tpot_s)),
            session,
        )

    @property
    def num_requests(self) -> int:
        """N."""
        return int(self.arrival_ns.size)

    @property
    def arrival_s(self) -> FloatArray:
        """(N,) float64, seconds."""
        return np.asarray(self.arrival_ns / NS_PER_S)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival_ns[-1] - self.arrival_ns[0]) / NS_PER_S

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all columns, hex; the name isn't part of it."""
        digest = hashlib.sha256()
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "name":
                digest.update(item.name.encode() + (b"none" if value is None else value.tobytes()))
        return digest.hexdigest()

    def take(self, index: IntArray, name: str | None = None) -> Workload:
        """Return some of the requests, in the order of `index`, which must be ascending."""
        columns: dict[str, Any] = {
            item.name: None if (value := getattr(self, item.name)) is None else value[index]
            for item in fields(self)
            if item.name != "name"
        }
        return Workload(name=self.name if name is None else name, **columns)

    def shifted(self, arrival_ns: IntArray, name: str | None = None) -> Workload:
        """Return the same requests with other arrival times, (N,) int64 nanoseconds."""
        return replace(self, arrival_ns=arrival_ns, name=self.name if name is None else name)

    def profile(self, *, tpot_s: float | None = 0.4, max_in_flight: int | None = 64) -> TrafficProfile:
        """Return the planner's view: mean lengths, rounded, from 1."""
        return TrafficProfile(
            prompt_tokens=max(1, round(float(self.prompt_tokens.mean()))),
            output_tokens=max(1, round(float(self.output_tokens.mean()))),
            tpot_s=tpot_s,
            max_in_flight=max_in_flight,
        )
