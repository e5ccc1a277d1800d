"""What may stand in a cluster file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from slob_opt.problem.files.checking import CHOICE, Flops, Latency, Rate, Seconds, Size, StrictSchema, VersionedSchema

MAX_CARDS = 65536
"""Most cards of a cluster file. Chosen: sixty times what planners are built for, and far from filling the memory."""

Count = Annotated[int, Field(ge=1, le=MAX_CARDS)]


class LinkSchema(StrictSchema):
    """A link: ``{bandwidth: 10Gbps, latency: 0.1ms}``."""

    bandwidth: Rate
    latency: Latency


class ProfileSchema(StrictSchema):
    """Achieved shares and overheads of a card; what is left out stays as the card's type has it."""

    gemm_compute_eff: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    gemm_mem_eff: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    gemm_t0: Latency | None = None
    p_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    attn_mem_eff: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    attn_t0: Latency | None = None
    attn_compute_eff: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    comm_t0: Latency | None = None
    layer_overhead: Latency | None = None
    step_overhead: Latency | None = None
    source: str | None = None


def _measured_kind(value: object) -> str:
    return CHOICE + ("profile" if isinstance(value, dict) else "file")


Measured = Annotated[
    Annotated[str, Field(min_length=1), Tag(f"{CHOICE}file")] | Annotated[dict[str, Any], Tag(f"{CHOICE}profile")],
    Discriminator(_measured_kind),
]
"""A profile: the name of its file, from the cluster file's folder, or its content."""


class CardSchema(StrictSchema):
    """One card with explicit numbers: ``{type: rtx-3090, memory: 23GiB}``.

    A card that was calibrated names its profile's file, or holds the profile itself: ``{measured: profile.json}``.
    """

    name: str | None = None
    type: str | None = None
    count: Count = 1
    memory: Size | None = None
    bandwidth: Rate | None = None
    flops: Flops | None = None
    layer_time: Seconds | None = None
    profile: ProfileSchema | None = None
    measured: Measured | None = None
    slowdown: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


def _gpus_kind(value: object) -> str:
    return CHOICE + ("cards" if isinstance(value, list) else "counts")


Counts = dict[str, Annotated[int, Field(ge=1, le=MAX_CARDS)]]
Gpus = Annotated[
    Annotated[Counts, Tag(f"{CHOICE}counts")] | Annotated[list[CardSchema], Tag(f"{CHOICE}cards")],
    Discriminator(_gpus_kind),
]
"""Cards as ``{type: number}``, or as a list of cards with explicit numbers."""


class NodeSchema(StrictSchema):
    """A machine, or `count` equal ones named ``name-0``, ``name-1`` and so on."""

    name: str = Field(min_length=1)
    count: Count | None = None
    gpus: Gpus
    tp_degrees: Annotated[list[Count], Field(min_length=1)] | None = None
    nic: Rate | None = None
    region: str | None = None
    intra_link: LinkSchema | None = None


class PairSchema(StrictSchema):
    """Links between two ends: ``{between: [a, b], ...}`` both ways, ``{from: a, to: b, ...}`` one way."""

    between: Annotated[list[str], Field(min_length=2, max_length=2)] | None = None
    source: str | None = Field(default=None, alias="from")
    target: str | None = Field(default=None, alias="to")
    bandwidth: Rate
    latency: Latency


class ClusterSchema(VersionedSchema):
    """A whole cluster file."""

    name: str | None = None
    nodes: list[NodeSchema] = Field(min_length=1)
    inter_link: LinkSchema | None = None
    intra_link: LinkSchema | None = None
    links: list[PairSchema] = Field(default_factory=list)
    sources: list[str] = Field(default_factory=list)
    uncertain: list[str] = Field(default_factory=list)
