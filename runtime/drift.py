"""Whether stages still take the time that their cost model foretells."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from slob_opt.errors import InputError


@dataclass(frozen=True, slots=True)
class DriftOptions:
    """When a stage counts as drifted. Chosen: see the tests.

    Attributes
    ----------
    window
        Steps of which the middle ratio is taken, so that single slow ones don't count.
    band
        The middle ratio of measured to foretold time may be so many times too large or too small.
    patience
        Steps in a row with the middle ratio outside the band before it is drift, and inside before it is over.
    """

    window: int = 64
    band: float = 1.25
    patience: int = 128

    def __post_init__(self) -> None:
        if self.window < 1 or self.patience < 1:
            raise InputError(f"window {self.window} and patience {self.patience}, expected at least 1 each")
        if not self.band > 1:
            raise InputError(f"band is {self.band}, expected above 1")


@dataclass(frozen=True, slots=True)
class StageDrift:
    """How a stage compares with its cost model.

    Attributes
    ----------
    stage
        Its name.
    num_steps
        Steps that were seen.
    ratio
        Middle ratio of measured to foretold time of the latest steps; ``None`` before the first.
    is_drifting
        Whether it has been outside the band for long.
    since_step
        Running number of the step with which it left the band; ``None`` while it doesn't drift.
    """

    stage: str
    num_steps: int
    ratio: float | None
    is_drifting: bool
    since_step: int | None

    @property
    def sentence(self) -> str:
        """What to tell the operator; empty while it doesn't drift."""
        if not self.is_drifting or self.ratio is None:
            return ""
        way = f"{self.ratio:.2f} times" if self.ratio >= 1 else f"only {self.ratio:.2f} times"
        steps = self.num_steps - (self.since_step or 0)
        return (
            f"stage {self.stage} takes {way} the time that its profile foretells, for {steps} steps now; calibrate"
            " again or look for what else runs there"
        )


@dataclass(slots=True)
class _Track:
    """What is remembered of one stage; the deque holds logarithms of ratios."""

    logs: deque[float]
    num_steps: int = 0
    outside: int = 0
    inside: int = 0
    is_drifting: bool = False
    left_at: int = 0
    middle: float | None = field(default=None)


class DriftMonitor:
    """Compares measured with foretold times, stage by stage; the same steps always give the same answer.

    Examples
    --------
    >>> monitor = DriftMonitor(DriftOptions(window=3, patience=2))
    >>> for measured_s in (1.0, 1.0, 9.0, 1.0, 2.0):
    ...     state = monitor.add("box/0", 1.0, measured_s)
    >>> state.ratio, state.is_drifting
    (2.0, False)
    >>> monitor.add("box/0", 1.0, 2.0).is_drifting
    True
    """

    def __init__(self, options: DriftOptions | None = None) -> None:
        self.options = options or DriftOptions()
        self._tracks: dict[str, _Track] = {}

    def add(self, stage: str, predicted_s: float, measured_s: float) -> StageDrift:
        """Enter a step of a stage; return how the stage does now.

        A step whose foretold or measured time isn't a finite number above zero is counted and otherwise left out.
        """
        options = self.options
        track = self._tracks.setdefault(stage, _Track(deque(maxlen=options.window)))
        track.num_steps += 1
        if not (0 < predicted_s < math.inf and 0 < measured_s < math.inf):
            return self._state(stage, track)
        track.logs.append(math.log(measured_s / predicted_s))
        track.middle = _middle(track.logs)
        if len(track.logs) == options.window and abs(track.middle) > math.log(options.band) * (1 + 1e-12):
            if not track.outside:
                track.left_at = track.num_steps
            track.outside, track.inside = track.outside + 1, 0
            track.is_drifting = track.is_drifting or track.outside >= options.patience
        else:
            track.inside += 1
            if track.inside >= options.patience or not track.is_drifting:
                track.outside, track.is_drifting = 0, False
        return self._state(stage, track)

    def state(self) -> tuple[StageDrift, ...]:
        """Return how each stage does, in the order in which they were first seen."""
        return tuple(self._state(stage, track) for stage, track in self._tracks.items())

    def forget(self, stage: str) -> None:
        """Begin anew with a stage, when its device or its layers were changed."""
        self._tracks.pop(stage, None)

    def _state(self, stage: str, track: _Track) -> StageDrift:
        ratio = None if track.middle is None else math.exp(track.middle)
        return StageDrift(
            stage, track.num_steps, ratio, track.is_drifting, track.left_at if track.is_drifting else None
        )


def _middle(values: deque[float]) -> float:
    """Median; of an even number the mean of the middle two, so that a ratio and its inverse are treated alike."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
