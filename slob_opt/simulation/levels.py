"""Changing levels while serving: what loads, what drains, what stays, and which cards are in use meanwhile.

A level is a set of pipelines. Those that both levels have go on. New ones load their weights while the old ones still
serve, where the cards hold both; the others wait until what is in their way has drained. A pipeline that is not served
from any more stays loaded only where its cards are in use anyway and have the room: going back to it is then free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slob_opt.errors import InputError
from slob_opt.problem.workload import NS_PER_S
from slob_opt.simulation.control import Observation, PipelineChange
from slob_opt.simulation.lanes import NEVER

CardBytes = Mapping[int, int]
"""Bytes by card."""


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """What the mechanics of levels must know.

    Attributes
    ----------
    levels
        Pipelines of each level.
    held_bytes
        For each pipeline the bytes it takes on each of its cards, weights and KV pool.
    weight_bytes
        For each pipeline the bytes that are loaded on each of its cards.
    room_bytes
        Bytes that each card has for weights and KV.
    load_bytes_per_s
        Rate at which a card loads weights, from disk or over its link.

    Raises
    ------
    InputError
        When a level doesn't fit its cards by itself.
    """

    levels: tuple[tuple[int, ...], ...]
    held_bytes: tuple[CardBytes, ...]
    weight_bytes: tuple[CardBytes, ...]
    room_bytes: CardBytes
    load_bytes_per_s: float

    def __post_init__(self) -> None:
        if not self.load_bytes_per_s > 0:
            raise InputError(f"load_bytes_per_s is {self.load_bytes_per_s}, expected above 0")
        for number, level in enumerate(self.levels):
            if not level or not all(0 <= pipeline < len(self.held_bytes) for pipeline in level):
                raise InputError(f"level {number} has pipelines {level}, expected some of {len(self.held_bytes)}")
            if not self.fits(level):
                raise InputError(f"the pipelines of level {number} don't fit their cards together")

    def fits(self, pipelines: Sequence[int]) -> bool:
        """Return whether the cards hold so many pipelines together."""
        used: dict[int, int] = {}
        for pipeline in set(pipelines):
            for card, size in self.held_bytes[pipeline].items():
                used[card] = used.get(card, 0) + size
        return all(size <= self.room_bytes.get(card, 0) for card, size in used.items())

    def load_ns(self, pipelines: Sequence[int]) -> int:
        """Return how long pipelines load: cards side by side, each at its rate, nanoseconds."""
        loads: dict[int, int] = {}
        for pipeline in pipelines:
            for card, size in self.weight_bytes[pipeline].items():
                loads[card] = loads.get(card, 0) + size
        return round(max(loads.values(), default=0) / self.load_bytes_per_s * NS_PER_S)


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of the log of levels.

    Attributes
    ----------
    at_ns
        When the level was asked for, nanoseconds.
    level
        Which.
    """

    at_ns: int
    level: int


class LevelController:
    """A controller of a simulation that follows whoever chooses levels.

    Parameters
    ----------
    plan
        Levels and what they take.
    choose
        Called each period with what was observed; returns the level that should serve.
    first
        Level at the start, loaded.
    period_ns
        Nanoseconds between calls of `choose`.

    Attributes
    ----------
    changes
        Levels in order, the first one included.
    card_ns
        Card-nanoseconds in use up to the last decision: a card counts while it holds or loads weights.
    """

    def __init__(
        self, plan: LevelPlan, choose: Callable[[Observation], int], *, first: int = 0, period_ns: int = 60 * NS_PER_S
    ) -> None:
        self.plan, self._choose, self.period_ns = plan, choose, period_ns
        self.level = first
        self.first_open = frozenset(plan.levels[first])
        self.changes = [Change(0, first)]
        self.card_ns = 0
        self.wake_ns: int | None = None
        self._ready = set(self.first_open)  # loaded, and open
        self._loaded = set(self.first_open)
        self._loading: dict[int, int] = {}
        self._seen_ns = 0
        self._chosen_ns: int | None = None
        self._kept = Observation(0, 0, 0, 0, 0, (), ())

    def decide(self, observation: Observation) -> list[PipelineChange]:
        """Return which pipelines open and close now."""
        now = observation.now_ns
        self.card_ns += len(self._cards_in_use()) * (now - self._seen_ns)
        self._seen_ns = now
        self._keep(observation)
        if now % self.period_ns == 0 and now != self._chosen_ns:
            self._chosen_ns = now
            level = self._choose(self._kept)
            self._kept = Observation(now, 0, 0, 0, 0, (), ())
            if not 0 <= level < len(self.plan.levels):
                raise InputError(f"level {level} was chosen of {len(self.plan.levels)}")
            if level != self.level:
                self.level = level
                self.changes.append(Change(now, level))
        changes = self._step(observation)
        self.wake_ns = min(self._loading.values(), default=None)
        return changes

    def cards_until(self, now_ns: int) -> int:
        """Return the card-nanoseconds in use up to a time from the last decision on."""
        return self.card_ns + len(self._cards_in_use()) * (now_ns - self._seen_ns)

    def _keep(self, seen: Observation) -> None:
        """Add up what was seen between the calls of `choose`."""
        kept = self._kept
        self._kept = Observation(
            seen.now_ns, kept.arrivals + seen.arrivals, kept.prompt_tokens + seen.prompt_tokens,
            kept.finished + seen.finished, kept.output_tokens + seen.output_tokens, seen.waiting, seen.running,
        )  # fmt: skip

    def _cards_in_use(self) -> set[int]:
        return {card for pipeline in self._loaded | set(self._loading) for card in self.plan.weight_bytes[pipeline]}

    def _step(self, seen: Observation) -> list[PipelineChange]:
        """Take the next steps towards the level: open what has loaded, load what fits, close what is not needed."""
        now, target = seen.now_ns, set(self.plan.levels[self.level])
        for pipeline in [one for one, at in self._loading.items() if at <= now]:
            self._loaded.add(pipeline)
            del self._loading[pipeline]
        changes = [
            PipelineChange(one, is_open=True, from_ns=now) for one in sorted(target & self._loaded - self._ready)
        ]
        self._ready |= target & self._loaded
        idle = {one for one in self._loaded - target - self._ready if not seen.waiting[one] + seen.running[one]}
        blocked = self._load(now, target, idle)
        surplus = self._ready - target
        serving = target & self._ready
        if surplus and (serving == target or (blocked and not self._loading)):
            if not serving:
                # Nothing of the new level serves yet: it takes requests, and starts when it has loaded.
                changes.append(PipelineChange(blocked[0], is_open=True, from_ns=NEVER))
            changes += [PipelineChange(one, is_open=False) for one in sorted(surplus)]
            self._ready -= surplus
            idle |= {one for one in surplus if not seen.waiting[one] + seen.running[one]}
            self._load(now, target, idle)
        in_use = {card for one in target for card in self.plan.weight_bytes[one]}
        self._loaded -= {one for one in idle if not in_use.issuperset(self.plan.weight_bytes[one])}
        return changes

    def _load(self, now: int, target: set[int], idle: set[int]) -> list[int]:
        """Start to load what fits, for which idle pipelines give way; return what doesn't fit yet."""
        plan, blocked = self.plan, []
        fitting: list[int] = []
        for pipeline in sorted(target - self._loaded - set(self._loading)):
            held = [*self._loaded, *self._loading, *fitting, pipeline]
            evicted: set[int] = set()
            for one in sorted(idle):
                if plan.fits([other for other in held if other not in evicted]):
                    break
                evicted.add(one)
            if plan.fits([other for other in held if other not in evicted]):
                fitting.append(pipeline)
                self._loaded -= evicted
                idle -= evicted
            else:
                blocked.append(pipeline)
        until = now + plan.load_ns(fitting)
        self._loading |= dict.fromkeys(fitting, until)
        return blocked
