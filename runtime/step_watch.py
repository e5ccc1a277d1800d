"""Which steps are late, and which workers have been asked whether they live: the executor's clockwork, without a clock.

A worker answers between two steps. So one that hangs in a step doesn't answer, and one that only waits for it does.
"""

from __future__ import annotations

PING_S, PING_SHARE = 2.0, 0.25
"""In which a worker answers that isn't computing, and that share of the deadline if that's longer: it may be in the
middle of a step of another pipeline. Chosen."""


class StepWatch:
    """Deadlines of steps and of answers; all times are of one monotonic clock, seconds.

    Parameters
    ----------
    deadline_s
        From a step's start to its output.
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._due: dict[tuple[int, int], float] = {}
        self._late: set[tuple[int, int]] = set()
        self._asked: dict[str, tuple[float, str]] = {}

    def begin(self, pipeline: int, step: int, now: float) -> None:
        """Note a step that begins."""
        self._due[pipeline, step] = now + self.deadline_s

    def end(self, pipeline: int, step: int) -> bool:
        """Note a step's output; return whether it was still waited for."""
        self._late.discard((pipeline, step))
        return self._due.pop((pipeline, step), None) is not None

    def forget(self, pipeline: int) -> None:
        """Wait for no step of a pipeline any more."""
        self._due = {key: at for key, at in self._due.items() if key[0] != pipeline}
        self._late = {key for key in self._late if key[0] != pipeline}

    def next_at(self) -> float | None:
        """Return when there's something to look for; ``None`` when nothing is waited for."""
        return min([*self._due.values(), *(at for at, _ in self._asked.values())], default=None)

    def late(self, now: float) -> list[tuple[int, bool]]:
        """Return the pipelines of steps that are over their deadline now, and whether one is for the second time.

        Each step is waited for as long again.
        """
        found: dict[int, bool] = {}
        for key, at in self._due.items():
            if at <= now:
                self._due[key] = now + self.deadline_s
                found[key[0]] = found.get(key[0], False) or key in self._late
                self._late.add(key)
        return list(found.items())

    def ask(self, worker: str, why: str, now: float) -> bool:
        """Note that a worker is asked whether it lives; return whether it has to be, since it isn't being asked."""
        if worker in self._asked:
            return False
        self._asked[worker] = (now + max(PING_S, PING_SHARE * self.deadline_s), why)
        return True

    def is_asked(self, worker: str) -> bool:
        """Whether a worker's answer is waited for."""
        return worker in self._asked

    def answered(self, worker: str) -> None:
        """Note that a worker has answered, or is gone."""
        self._asked.pop(worker, None)

    def hung(self, now: float) -> list[tuple[str, str]]:
        """Return the workers that haven't answered in time, and why they were asked."""
        return [(worker, why) for worker, (at, why) in self._asked.items() if at <= now]
