"""Variants change what they say and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.random_instances import Recipe, draw_small
from experiments.studies.properties import worse_pct
from experiments.studies.variants import VARIANTS, variant
from slob_opt.errors import InputError

PROBLEM = draw_small(Recipe(6, "general", 4, is_short=True), 5)


def test_another_device_is_a_copy_with_its_twin_s_links() -> None:
    old, new = PROBLEM.cluster, variant(PROBLEM, "device", 1).cluster
    assert new.devices[:6] == old.devices
    twins = [i for i, d in enumerate(old.devices) if d.gpu == new.devices[6].gpu]
    assert any(
        all(new.link(6, b) == old.link(twin, b) and new.link(b, 6) == old.link(b, twin) for b in range(6) if b != twin)
        for twin in twins
    )
    table, changed = PROBLEM.instance().table, variant(PROBLEM, "device", 1).instance().table
    assert np.array_equal(changed.device_class[:6], table.device_class)


def test_memory_and_bandwidth_only_grow() -> None:
    table = PROBLEM.instance().table
    memory = variant(PROBLEM, "memory", 0).instance().table
    assert np.all(memory.capacity_bytes > table.capacity_bytes)
    assert np.array_equal(memory.hop_s, table.hop_s)
    faster = variant(PROBLEM, "bandwidth", 0)
    for a in range(6):
        for b in range(6):
            if a != b:
                assert faster.cluster.link(a, b).bytes_per_s == 2 * PROBLEM.cluster.link(a, b).bytes_per_s
                assert faster.cluster.link(a, b).latency_s == PROBLEM.cluster.link(a, b).latency_s


def test_relabelling_moves_links_with_their_nodes() -> None:
    new = variant(PROBLEM, "relabelled", 2).cluster
    names = [n.name for n in new.nodes]
    assert sorted(names) == sorted(n.name for n in PROBLEM.cluster.nodes)
    old = {n.name: i for i, n in enumerate(PROBLEM.cluster.nodes)}
    for a, first in enumerate(names):
        for b, second in enumerate(names):
            assert a == b or new.link(a, b) == PROBLEM.cluster.link(old[first], old[second])


def test_a_seed_fixes_a_variant() -> None:
    for name in VARIANTS:
        one, two = variant(PROBLEM, name, 4).instance(), variant(PROBLEM, name, 4).instance()
        assert one.fingerprint == two.fingerprint
        assert one.fingerprint != PROBLEM.instance().fingerprint
    with pytest.raises(InputError, match="no variant"):
        variant(PROBLEM, "colour", 0)


def test_getting_worse_is_measured_on_the_minimised_scale() -> None:
    assert worse_pct(-100.0, -90.0, both_ways=False) == pytest.approx(10.0)
    assert worse_pct(-100.0, -110.0, both_ways=False) == 0.0
    assert worse_pct(-100.0, -110.0, both_ways=True) == pytest.approx(10.0)
    assert worse_pct(0.5, None, both_ways=False) == 100.0
    assert worse_pct(None, 0.5, both_ways=False) == 0.0
    assert worse_pct(None, 0.5, both_ways=True) == 100.0
