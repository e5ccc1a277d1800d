"""Options of `slob serve` and `slob deploy`, and what they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli.number_options import MAX_IN_FLIGHT, MAX_MICRO_BATCHES, MAX_TOKENS, number, whole
from slob_opt.errors import InputError

_SYSTEM, _SERVING, _SERVER = "System", "Serving", "Server"

DEFAULT_ROWS = 64
"""Most requests in a pipeline. Chosen: small devices are for small numbers of people."""


class DtypeName(StrEnum):
    """Types of weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class GoalName(StrEnum):
    """What a plan that is made now is for."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"


def _option(*names: str, panel: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def _whole(*names: str, panel: str, text: str, least: int, most: int) -> Any:
    return _option(*names, panel=panel, text=text, parser=whole(least, most), metavar="<int>")


def _number(*names: str, panel: str, text: str, **limits: float) -> Any:
    return _option(*names, panel=panel, text=text, parser=number(**limits), metavar="<float>")


Model = Annotated[
    str,
    _option(
        "--model", "-m", panel=_SYSTEM, text="Folder of a Hugging Face model, a fetched one's name, or tiny-llama."
    ),
]
Plan = Annotated[
    Path | None, _option("--plan", panel=_SYSTEM, text="Plan file of slob plan; it says which layers are where.")
]
Cluster = Annotated[
    str | None,
    _option("--cluster", "-c", panel=_SYSTEM, text="Cluster to plan for now, or that the plan must be for."),
]
Objective = Annotated[GoalName, _option("--objective", panel=_SYSTEM, text="What to plan for where there is no plan.")]
Workers = Annotated[
    Path | None,
    _option("--workers", panel=_SYSTEM, text="Workers file: real device of each planned one, and what is emulated."),
]
On = Annotated[
    list[str] | None,
    _option("--on", panel=_SYSTEM, text="DEVICE=TORCH, as box/0=cuda:0; repeatable. The default is cpu."),
]
Dtype = Annotated[
    DtypeName | None, _option("--dtype", panel=_SYSTEM, text="Type of the weights; default: the checkpoint's.")
]
PolicyName = Annotated[str, _option("--policy", "-p", panel=_SERVING, text="Who is served next; see slob catalog.")]
Params = Annotated[
    list[str] | None, _option("--param", panel=_SERVING, text="Parameter of the policy, name=value; repeatable.")
]
DispatcherName = Annotated[str, _option("--dispatcher", panel=_SERVING, text="Who chooses the pipeline of a request.")]
Padded = Annotated[
    bool, _option("--padded", panel=_SERVING, text="Compute rectangles, as engines without packed attention do.")
]
Lanes = Annotated[
    int | None,
    _whole("--lanes", panel=_SERVING, text="Micro-batches in flight of each pipeline; default: the plan's K.",
           least=1, most=MAX_MICRO_BATCHES),
]  # fmt: skip
Rows = Annotated[
    int, _whole("--max-rows", panel=_SERVING, text="Most requests in a pipeline.", least=1, most=MAX_IN_FLIGHT)
]
Chunk = Annotated[
    int, _whole("--chunk", panel=_SERVING, text="Tokens of a micro-batch where the policy chunks.", least=1,
                most=MAX_TOKENS),
]  # fmt: skip
KvBlocks = Annotated[
    int | None,
    _whole("--kv-blocks", panel=_SERVING, text="KV blocks of a pipeline, 16 tokens each; default: what fits.",
           least=1, most=10**9),
]  # fmt: skip
Deadline = Annotated[
    float,
    _number("--step-deadline", panel=_SERVING, text="Seconds after which a worker counts as hung.", above=0, most=1e6),
]
Replan = Annotated[
    bool, _option("--replan/--no-replan", panel=_SERVING, text="Plan anew for the devices left when one is lost.")
]
Host = Annotated[str, _option("--host", panel=_SERVER, text="Address to listen on.")]
Port = Annotated[int, _whole("--port", panel=_SERVER, text="Port; 0 takes a free one.", least=0, most=65535)]
Name = Annotated[
    str | None, _option("--name", panel=_SERVER, text="What clients call the model; default: the folder's name.")
]
ApiKey = Annotated[
    str | None,
    _option("--api-key", panel=_SERVER, text="Key that clients must show; default: the variable SLOB_API_KEY."),
]
MaxWaiting = Annotated[
    int, _whole("--max-waiting", panel=_SERVER, text="Waiting requests beyond which clients get 429.", least=1,
                most=10**6),
]  # fmt: skip
Drain = Annotated[
    float, _number("--drain", panel=_SERVER, text="Seconds that running answers get after SIGTERM.", least=0, most=1e6)
]


def devices_of(texts: list[str] | None) -> Mapping[str, str]:
    """Return torch devices by device of the plan, from texts ``box/0=cuda:0``.

    Examples
    --------
    >>> devices_of(["box/0=cpu", "box/1=cuda:0"])
    {'box/0': 'cpu', 'box/1': 'cuda:0'}

    Raises
    ------
    InputError
        When a text has another form or a device stands twice.
    """
    found: dict[str, str] = {}
    for text in texts or []:
        name, equals, torch_device = text.partition("=")
        if not equals or not name.strip() or not torch_device.strip():
            raise InputError(f"found {text!r}, expected DEVICE=TORCH, as box/0=cuda:0", key="--on")
        if name.strip() in found:
            raise InputError(f"device {name.strip()!r} stands twice", key="--on")
        found[name.strip()] = torch_device.strip()
    return found
