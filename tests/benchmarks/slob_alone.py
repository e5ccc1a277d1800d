"""Time of `slob` on each instance of the gap study with nothing beside it: ``python tests/benchmarks/slob_alone.py``.

The study itself runs solvers on the other cores, which stretches milliseconds. Prints JSON: milliseconds of processor
time of whole calls on one thread (the least of five, so that other jobs count little), in all and by kind of instance,
and how many are above 20 ms.
"""

from __future__ import annotations

import json
import time

import numpy as np

from experiments.studies.gap_cases import gap_cases
from slob_opt.slob.placement import SlobPlanner


def main() -> None:
    """Measure and print."""
    planner = SlobPlanner()
    times: dict[str, list[float]] = {}
    for case in gap_cases(0, is_quick=False):
        instance = case.problem.instance()
        calls = []
        for _ in range(5):
            start = time.process_time()
            planner.solve(instance)
            calls.append(1e3 * (time.process_time() - start))
        times.setdefault(case.problem.name.rsplit("-", 2)[0], []).append(min(calls))
    times = {"all": [ms for part in times.values() for ms in part], **times}
    print(json.dumps({kind: summary(np.array(part)) for kind, part in times.items()}, indent=1))


def summary(ms: np.ndarray) -> dict[str, float]:
    """Return count, median, 95th percentile, maximum, and how many are above 20 ms."""
    median, p95 = np.percentile(ms, [50, 95])
    return {
        "instances": int(ms.size),
        "median_ms": round(float(median), 2),
        "p95_ms": round(float(p95), 2),
        "max_ms": round(float(ms.max()), 2),
        "over_20_ms": int((ms > 20).sum()),
    }


if __name__ == "__main__":
    main()
