from __future__ import annotations

import pytest

from slob_opt.errors import InputError
from slob_opt.problem import Cluster, Device, Link, Node

SLOW, BUS, OWN, NODES, CARDS = (Link(speed, 0.0) for speed in (1.0, 2.0, 3.0, 4.0, 5.0))


def card(name: str) -> Device:
    return Device(name, "x", 1, 1.0, 1.0)


def nodes() -> tuple[Node, ...]:
    return (Node("a", (card("a/0"), card("a/1"))), Node("b", (card("b/0"), card("b/1")), intra_link=OWN))


def test_the_narrowest_link_holds():
    overrides = {("a", "b"): NODES, ("a/0", "b/0"): CARDS, ("b/0", "b/1"): CARDS}
    made = Cluster("c", nodes(), SLOW, BUS, overrides)
    assert made.link(0, 1) is BUS
    assert made.link(3, 2) is OWN
    assert made.link(2, 3) is CARDS
    assert made.link(0, 2) is CARDS
    assert made.link(1, 2) is NODES
    assert made.link(2, 1) is SLOW  # overrides are directed
    assert made.node_index == (0, 0, 1, 1)
    with pytest.raises(InputError, match="to itself"):
        made.link(1, 1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [({("a", "a"): SLOW}, "to itself"), ({("a", "z"): SLOW}, "'z' is neither a node nor a device")],
)
def test_wrong_overrides(overrides, message):
    with pytest.raises(InputError, match=message):
        Cluster("c", nodes(), SLOW, BUS, overrides)


def test_overrides_cannot_change_afterwards():
    given = {("a", "b"): NODES}
    made = Cluster("c", nodes(), SLOW, BUS, given)
    given.clear()
    assert dict(made.overrides) == {("a", "b"): NODES}
    with pytest.raises(TypeError):
        made.overrides["b", "a"] = SLOW  # type: ignore[index]  # that's the point


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": ()}, "has 0 GPUs"),
        ({"tp_degrees": (2,)}, "degree 2 on node n, which has 1 GPUs"),
        ({"tp_degrees": ()}, "tp_degrees"),
        ({"nic_bytes_per_s": 0.0}, "NIC capacity"),
    ],
)
def test_wrong_nodes(change, message):
    with pytest.raises(InputError, match=message):
        Node(**{"name": "n", "devices": (card("n/0"),)} | change)


def test_duplicate_names_and_no_nodes():
    with pytest.raises(InputError, match="'a/0' is used more than once"):
        Cluster("c", (Node("a", (card("a/0"),)), Node("b", (card("a/0"),))), SLOW, BUS)
    with pytest.raises(InputError, match="has no nodes"):
        Cluster("c", (), SLOW, BUS)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_speeds_are_finite_and_above_zero(bad):
    """Case G05: a device of 0 FLOPS must not divide by zero later."""
    for field in ("memory_bytes", "peak_flops", "bytes_per_s", "layer_time_s"):
        numbers = {"memory_bytes": 1, "peak_flops": 1.0, "bytes_per_s": 1.0} | {field: bad}
        with pytest.raises(InputError, match=field):
            Device("d", "x", **numbers)
    with pytest.raises(InputError, match="bandwidth"):
        Link(bad, 0.0)
