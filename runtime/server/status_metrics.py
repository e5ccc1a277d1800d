"""The engine's state as metrics, made from a status at each reading."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.generation import EngineStatus


def kv_usage(status: EngineStatus) -> float:
    """Return which part of the KV blocks of all pipelines that are up is taken, from 0 to 1."""
    total = sum(one.kv_blocks for one in status.pipelines if one.is_up)
    return sum(one.kv_blocks - one.free_blocks for one in status.pipelines if one.is_up) / total if total else 0.0


def num_new_faults(before: tuple[str, ...], after: tuple[str, ...]) -> int:
    """Return how many sentences were put before those that were there, both lists the last one first.

    Examples
    --------
    >>> num_new_faults(("b", "a"), ("c", "b", "a"))
    1
    """
    for fresh in range(len(after) + 1):
        rest = after[fresh:]
        if rest == before[: len(rest)]:
            return fresh
    return len(after)


class StatusCollector(Collector):
    """Tells an engine's status in Prometheus' terms.

    Parameters
    ----------
    labels, values
        Of vLLM's metrics.
    """

    def __init__(self, labels: tuple[str, ...], values: tuple[str, ...]) -> None:
        self._labels, self._values = labels, values
        self._status: EngineStatus | None = None
        self._faults: tuple[str, ...] = ()
        self._num_faults = 0

    def take(self, status: EngineStatus | None) -> None:
        """Take the status that is told next; ``None`` keeps the last one."""
        if status is not None:
            self._num_faults += num_new_faults(self._faults, status.faults)
            self._status, self._faults = status, status.faults

    def describe(self) -> Iterator[Metric]:
        """Return nothing: names aren't checked before there is a status."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return all metrics of the last status."""
        status = self._status
        if status is None:
            return
        pipelines = status.pipelines
        yield self._vllm("num_requests_running", "Requests that hold KV.", sum(one.running for one in pipelines))
        yield self._vllm("num_requests_waiting", "Requests that wait for KV.", sum(one.waiting for one in pipelines))
        yield self._vllm("kv_cache_usage_perc", "Part of the KV blocks that is taken, 0 to 1.", kv_usage(status))
        preempted = CounterMetricFamily("vllm:num_preemptions", "Times a request lost its KV.", labels=self._labels)
        preempted.add_metric(self._values, status.num_preempted)
        yield preempted
        yield GaugeMetricFamily("slob_engine_up", "Whether the engine serves.", value=float(status.is_up))
        yield GaugeMetricFamily("slob_engine_draining", "Whether it goes down.", value=float(status.is_draining))
        yield GaugeMetricFamily("slob_pipelines_up", "Pipelines that serve.", value=sum(one.is_up for one in pipelines))
        yield CounterMetricFamily("slob_worker_faults", "Workers lost and what came of it.", value=self._num_faults)
        yield from self._per_pipeline(status)
        yield from self._per_stage(status)

    def _vllm(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=self._labels)
        family.add_metric(self._values, value)
        return family

    @staticmethod
    def _per_pipeline(status: EngineStatus) -> Iterator[Metric]:
        families = {
            name: GaugeMetricFamily(f"slob_pipeline_{name}", text, labels=("pipeline",))
            for name, text in (
                ("up", "Whether a pipeline serves."),
                ("running", "Requests of a pipeline that hold KV."),
                ("waiting", "Queue of a pipeline."),
                ("kv_usage_ratio", "Part of its KV blocks that is taken, 0 to 1."),
            )
        }
        for index, one in enumerate(status.pipelines):
            used = (one.kv_blocks - one.free_blocks) / one.kv_blocks if one.kv_blocks else 0.0
            values = (float(one.is_up), one.running, one.waiting, used)
            for family, value in zip(families.values(), values, strict=True):
                family.add_metric((str(index),), value)
        yield from families.values()

    @staticmethod
    def _per_stage(status: EngineStatus) -> Iterator[Metric]:
        labels = ("pipeline", "stage", "device")
        busy = CounterMetricFamily("slob_stage_busy_seconds", "Seconds a stage has computed.", labels=labels)
        emulated = GaugeMetricFamily(
            "slob_stage_emulated", "Whether the device of a stage pretends to be another one.", labels=labels
        )
        for index, one in enumerate(status.pipelines):
            for stage, ((device, _, _), busy_s, words) in enumerate(
                zip(one.stages, one.busy_s, one.emulated, strict=True)
            ):
                where = (str(index), str(stage), device)
                busy.add_metric(where, busy_s)
                emulated.add_metric(where, float(bool(words)))
        yield busy
        yield emulated
