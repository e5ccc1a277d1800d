"""The same number of layers on every device."""

from __future__ import annotations

from collections.abc import Iterator

from slob_opt.planning.baselines.fixed_split import Family, FixedSplit, solve_families, whole_devices
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import SolveLimits, SolveResult
from slob_opt.problem.placement import Placement


class EvenPlanner:
    """Equal layer counts over all devices in table order, as pipeline-parallel engines do by default.

    A remainder goes one layer each to the stages before the last one, from the back, since the last one has the head.
    With more devices than layers the first ones are used. For throughput the devices are also cut into equal groups of
    neighbours, one replica each, as engines do when data-parallel and pipeline-parallel sizes are set.

    References
    ----------
    vLLM, ``vllm/distributed/utils.py``, ``get_pp_indices`` (2024-2025). Deviation: vLLM asks the user for the number of
    replicas, here the best one that divides the devices is taken.
    """

    is_baseline = True

    @property
    def name(self) -> str:
        """Name in tables and files."""
        return "even"

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the even split; the incumbent is ignored."""
        return solve_families(self.name, instance, _families(instance), limits)


def even_counts(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return the layers of each stage.

    Examples
    --------
    >>> even_counts(30, 4)
    (7, 8, 8, 7)
    """
    counts = [num_layers // num_stages] * num_stages
    for i in range(num_layers % num_stages):
        counts[-2 - i] += 1
    return tuple(counts)


def _families(instance: PlacementInstance) -> Iterator[Family]:
    """Even splits for each number of replicas that divides the devices."""
    devices, num_layers = whole_devices(instance.table), instance.table.num_layers
    for replicas in range(1, len(devices) + 1 if instance.is_throughput else 2):
        if len(devices) % replicas:
            continue
        size = len(devices) // replicas
        used = min(size, num_layers)
        yield tuple(
            FixedSplit(devices[r * size : r * size + used], even_counts(num_layers, used)) for r in range(replicas)
        )
