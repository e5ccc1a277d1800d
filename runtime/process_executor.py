"""An executor with a process for each device; steps pass from worker to worker, not through the engine."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from runtime.emulation import check_cores
from runtime.executor import Capacity, ExecutorSpec, Progress, SliceSpec, WorkerSpec
from runtime.step_watch import StepWatch
from runtime.steps import Event, StepInput, WorkerLost
from runtime.transport.frames import Frame
from runtime.transport.peer import ClosedError
from runtime.transport.ring import Ring
from runtime.worker_link import STOP_S, WorkerLink
from runtime.worker_messages import Kind, free_of, output_of, setup_frame, slices_frame, step_frame
from slob_opt.errors import EngineError

READY_S = 120.0
"""In which a worker's process must have started; torch alone takes seconds to import."""

LOAD_S = 1800.0
"""In which a worker must have read its weights."""

PROBE_S = 20.0
"""In which the first bytes must have crossed a link."""

PROBE_BYTES = (1 << 10, 1 << 20)


class ProcessExecutor:
    """Workers, one for each device.

    Parameters
    ----------
    spec
        What they hold.
    token
        Secret that workers on other machines know; ``None`` where there are none.
    """

    def __init__(self, spec: ExecutorSpec, token: str | None = None) -> None:
        self.spec, self._token = spec, token
        self._links: dict[str, WorkerLink] = {}
        self._stages: dict[int, list[str]] = {}
        self._watch = StepWatch(spec.deadline_s)
        self._linked: set[tuple[str, str]] = set()
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._broken: dict[str, set[str]] = {}
        self._is_closed = False
        # The system ends workers when the thread that started them ends, which may be any caller's.
        self._starter = ThreadPoolExecutor(1, "slob-starter")

    # ------------------------------------------------------------------ start

    def start(self, progress: Progress) -> Sequence[Capacity]:
        """Start all workers and load all stages; on an error none is left."""
        try:
            return self.extend(self.spec.workers, progress)
        except BaseException:
            self.close()
            raise

    def extend(self, workers: Sequence[WorkerSpec], progress: Progress) -> Sequence[Capacity]:
        """Load further pipelines; steps of those that are loaded wait until that's done.

        On an error what was loaded for them is freed again, and workers that were started for them end.
        """
        fresh = [worker for worker in workers if worker.name not in self._links]
        check_cores([*(link.spec for link in self._links.values()), *fresh])
        try:
            return self._extend(workers, fresh, progress)
        except BaseException:
            self._undo(workers, fresh)
            raise

    def _extend(
        self, workers: Sequence[WorkerSpec], fresh: Sequence[WorkerSpec], progress: Progress
    ) -> Sequence[Capacity]:
        for worker in fresh:
            self._links[worker.name] = self._starter.submit(WorkerLink.start, worker, self._token).result()
        threads = 1 if len(self._links) > 1 else max(1, len(os.sched_getaffinity(0)) - 1)
        for worker in fresh:
            num_threads = threads if worker.emulation.slowdown == 1.0 else 1
            setup = setup_frame(self.spec, worker, num_threads)
            self._links[worker.name].ask(setup, Kind.READY, READY_S, progress)
        for worker in workers:
            self._links[worker.name].pipelines.update(piece.pipeline for piece in worker.slices)
            self._links[worker.name].peer.send(slices_frame(Kind.LOAD, worker.slices))
        found: dict[tuple[int, int], tuple[str, SliceSpec, int, int]] = {}
        for worker in workers:
            answer = self._links[worker.name].wait_for(Kind.LOADED, LOAD_S, progress)
            rooms, weights = answer.values["rooms"], answer.values["weights"]
            for piece, room, weight in zip(worker.slices, rooms, weights, strict=True):
                found[piece.pipeline, piece.stage] = (worker.name, piece, int(room), int(weight))
        self._connect(found, progress)
        capacities = self._take_kv(found, progress)
        for worker in fresh:
            link = self._links[worker.name]
            self._selector.register(link.peer, selectors.EVENT_READ, link)
        return capacities

    def _undo(self, workers: Sequence[WorkerSpec], fresh: Sequence[WorkerSpec]) -> None:
        """Leave things as they were before pipelines were to be loaded."""
        for worker in fresh:
            link = self._links.pop(worker.name, None)
            if link is not None:
                link.kill()
            self._linked = {pair for pair in self._linked if worker.name not in pair}
        for worker in workers:
            link = self._links.get(worker.name)
            if link is None:
                continue
            with contextlib.suppress(EngineError):  # poll tells who is gone
                for pipeline in dict.fromkeys(piece.pipeline for piece in worker.slices):
                    link.pipelines.discard(pipeline)
                    self._stages.pop(pipeline, None)
                    link.peer.send(Frame(Kind.DROP, {"pipeline": pipeline}))
                link.settle(LOAD_S)

    def _take_kv(
        self, found: dict[tuple[int, int], tuple[str, SliceSpec, int, int]], progress: Progress
    ) -> list[Capacity]:
        capacities = []
        for pipeline in sorted({pipeline for pipeline, _ in found}):
            stages = [found[key] for key in sorted(found) if key[0] == pipeline]
            blocks = min(room for _, _, room, _ in stages)
            if self.spec.num_blocks is not None:
                if blocks < self.spec.num_blocks:
                    progress(f"pipeline {pipeline}: {self.spec.num_blocks} KV blocks were asked for, {blocks} fit")
                blocks = min(blocks, self.spec.num_blocks)
            names = [name for name, *_ in stages]
            for place, (name, piece, _, _) in enumerate(stages):
                after = names[place + 1] if place + 1 < len(names) else ""
                frame = slices_frame(Kind.CACHES, (piece,), blocks=[blocks], next=[after])
                self._links[name].ask(frame, Kind.READY, LOAD_S, progress)
            self._stages[pipeline] = names
            capacities.append(Capacity(blocks, tuple(weight for *_, weight in stages)))
            progress(f"pipeline {pipeline}: {blocks} KV blocks of {self.spec.block_tokens} tokens")
        return capacities

    def _connect(self, found: dict[tuple[int, int], tuple[str, SliceSpec, int, int]], progress: Progress) -> None:
        """Join workers whose stages follow each other, and send the first bytes over each link."""
        wanted = []
        for (pipeline, stage), (name, _, _, _) in sorted(found.items()):
            after = found.get((pipeline, stage + 1))
            if after is not None and after[0] != name and (name, after[0]) not in wanted:
                wanted.append((name, after[0]))
        for a, b in wanted:
            if (a, b) in self._linked or (b, a) in self._linked:
                self._linked.add((a, b))
                continue
            self._join(self._links[a], self._links[b], progress)
            self._linked.add((a, b))
        for a, b in wanted:
            self._probe(self._links[a], self._links[b], progress)

    def _join(self, a: WorkerLink, b: WorkerLink, progress: Progress) -> None:
        if not a.is_remote and not b.is_remote:
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            rings = [ring for ring in (Ring.create(), Ring.create()) if ring is not None]
            try:
                for end, link, other, order in ((ends[0], a, b, rings), (ends[1], b, a, rings[::-1])):
                    link.send_descriptors(Frame(Kind.PEER, {"name": other.spec.name}), [end.fileno(), *order])
                    link.wait_for(Kind.READY, PROBE_S, progress)
            finally:
                for end in ends:
                    end.close()
                for ring in rings:
                    os.close(ring)
            return
        token = secrets.token_hex(16)
        listens, dials = (b, a) if b.is_remote else (a, b)
        expect = Frame(Kind.EXPECT, {"name": dials.spec.name, "host": "0.0.0.0", "token": token})
        port = listens.ask(expect, Kind.PORT, PROBE_S, progress).values["port"]
        host = listens.spec.host or ""
        dials.ask(
            Frame(Kind.DIAL, {"name": listens.spec.name, "host": host, "port": port, "token": token}), Kind.READY,
            PROBE_S, progress,
        )  # fmt: skip
        listens.wait_for(Kind.READY, PROBE_S, progress)

    def _probe(self, a: WorkerLink, b: WorkerLink, progress: Progress) -> None:
        """Send 1 KB and 1 MB over a link, and name it when they don't arrive."""
        for size in PROBE_BYTES:
            a.peer.send(Frame(Kind.PROBE, {"to": b.spec.name}, {"data": np.zeros(size, np.uint8)}))
            try:
                b.wait_for(Kind.PONG, PROBE_S, progress, lambda values: values.get("probe_from") == a.spec.name)
            except EngineError as error:
                raise EngineError(
                    f"{size:,} bytes from {a.spec.name} to {b.spec.name} didn't arrive within {PROBE_S:g} s: {error}"
                ) from error

    # ------------------------------------------------------------------ steps

    def submit(self, step: StepInput) -> None:
        """Send a step to its first stage."""
        names = self._stages.get(step.pipeline)
        if names is None:
            raise EngineError(f"pipeline {step.pipeline} isn't loaded")
        self._watch.begin(step.pipeline, step.step, time.monotonic())
        link = self._links.get(names[0])
        if link is not None:
            with contextlib.suppress(ClosedError):  # poll tells who is gone
                link.peer.send(step_frame(Kind.STEP, step, 0))

    def poll(self, timeout_s: float | None) -> list[Event]:
        """Return what workers have told since; a step that is too late makes its worker a suspect, see `_look`."""
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            events: list[Event] = []
            for link in list(self._links.values()):
                while link.early:
                    events += self._event(link, link.early.pop(0))
            until = [at for at in (ends, self._watch.next_at()) if at is not None]
            wait = None if not until else max(0.0, min(until) - time.monotonic())
            is_woken = False
            for key, _ in self._selector.select(0 if events else wait):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_in, 4096)
                    is_woken = True
                else:
                    events += self._received(key.data)
            events += self._look()
            if events or is_woken or (ends is not None and time.monotonic() >= ends):
                return events

    def _received(self, link: WorkerLink) -> list[Event]:
        if link.is_lost:
            return []
        try:
            frame = link.peer.take()
        except ClosedError:
            return self._lose(link, f"the worker {link.death()}")
        except EngineError as error:
            return self._lose(link, str(error))
        return [] if frame is None else self._event(link, frame)

    def _event(self, link: WorkerLink, frame: Frame) -> list[Event]:
        values = frame.values
        if frame.kind == Kind.OUTPUT:
            output = output_of(frame)
            is_awaited = self._watch.end(output.pipeline, output.step)
            return [output] if is_awaited else []  # of a pipeline that was lost meanwhile
        if frame.kind == Kind.FREE:
            free = free_of(frame)
            return [free] if free.pipeline in self._stages else []
        if frame.kind == Kind.PONG and "suspect" in values:
            self._watch.answered(link.spec.name)
            return self._cut(link.spec.name)
        if frame.kind == Kind.BROKEN:
            if values["with"] in self._links:
                self._broken.setdefault(values["with"], set()).add(link.spec.name)
            self._suspect(values["with"], f"its link to {link.spec.name} broke ({values['message']})")
            return []
        if frame.kind == Kind.FAILED:
            pipeline = values["pipeline"]
            if pipeline is not None and pipeline not in self._stages:
                return []  # a step behind the one that failed first
            lost = tuple(sorted(link.pipelines & set(self._stages))) if pipeline is None else (pipeline,)
            return [self._lost(link.spec.name, lost, f"a step failed: {values['message']}")]
        return []

    def _look(self) -> list[Event]:
        """Look for steps that are too late: ask the workers of their pipeline, and take who doesn't answer for hung.

        A worker answers between two steps; so who computes for ever doesn't, and who waits for it does. When all of
        them answer and the step doesn't come for as long again, it got lost between them, and so is the pipeline.
        """
        now = time.monotonic()
        events: list[Event] = []
        for pipeline, is_again in self._watch.late(now):
            names = self._stages.get(pipeline, [])
            if is_again and not any(self._watch.is_asked(name) for name in names):
                why = f"a step didn't come within {2 * self.spec.deadline_s:g} s, though all its workers answer"
                events.append(self._lost(names[-1], (pipeline,), why))
                continue
            for name in names:
                self._suspect(name, f"a step took longer than {self.spec.deadline_s:g} s")
        for name, why in self._watch.hung(now):
            link = self._links[name]
            hung = f"{why} and the worker doesn't answer: it's taken for hung{link.whereabouts()}"
            events += self._lose(link, hung)
        return events

    def _suspect(self, name: str, why: str) -> None:
        """Ask a worker whether it lives."""
        link = self._links.get(name)
        if link is not None and self._watch.ask(name, why, time.monotonic()):
            with contextlib.suppress(ClosedError):
                link.peer.send(Frame(Kind.PING, {"suspect": True}))

    def _cut(self, name: str) -> list[Event]:
        """Lose the pipelines that used a worker's broken links, now that the worker itself is known to live."""
        events: list[Event] = []
        for other in sorted(self._broken.pop(name, ())):
            self._linked -= {(name, other), (other, name)}
            lost = tuple(
                pipeline
                for pipeline, names in sorted(self._stages.items())
                if {name, other} in [set(pair) for pair in pairwise(names)]
            )
            if lost:
                events.append(self._lost(name, lost, f"its link to {other} broke"))
        return events

    def _lose(self, link: WorkerLink, reason: str) -> list[Event]:
        name = link.spec.name
        if link.is_lost:
            return []
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(link.peer)
        link.kill()
        self._links.pop(name, None)
        self._watch.answered(name)
        self._broken.pop(name, None)
        self._linked = {pair for pair in self._linked if name not in pair}
        return [self._lost(name, tuple(sorted(link.pipelines & set(self._stages))), reason)]

    def _lost(self, name: str, pipelines: tuple[int, ...], reason: str) -> WorkerLost:
        """Return the event; steps of these pipelines aren't waited for any more."""
        for pipeline in pipelines:
            self._watch.forget(pipeline)
        return WorkerLost(name, pipelines, reason)

    def wake(self) -> None:
        """Make a waiting :meth:`poll` return."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_out, b"w")

    def drop(self, pipeline: int) -> None:
        """Forget a pipeline; its live workers free its slices after the steps they have."""
        names = self._stages.pop(pipeline, [])
        self._watch.forget(pipeline)
        for name in dict.fromkeys(names):
            link = self._links.get(name)
            if link is not None and not link.is_lost:
                link.pipelines.discard(pipeline)
                with contextlib.suppress(ClosedError):
                    link.peer.send(Frame(Kind.DROP, {"pipeline": pipeline}))

    @property
    def worker_pids(self) -> dict[str, int]:
        """Process ids of workers on this machine, by name."""
        return {name: link.pid for name, link in self._links.items() if link.pid is not None}

    def close(self) -> None:
        """Stop all workers; those that don't end in time are killed."""
        if self._is_closed:
            return
        self._is_closed = True
        for link in self._links.values():
            with contextlib.suppress(EngineError):
                link.peer.send(Frame(Kind.STOP))
        by = time.monotonic() + STOP_S
        for link in self._links.values():
            link.stop(by)
        self._links.clear()
        self._starter.shutdown()
        self._selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)
