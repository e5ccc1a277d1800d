"""Which tensor- and expert-parallel degrees a model allows, all violated rules told at once."""

from __future__ import annotations

from collections.abc import Iterable

from slob_opt.errors import InputError
from slob_opt.problem.model import ModelSpec


def _head_shapes(model: ModelSpec) -> tuple[tuple[int, int], ...]:
    """Return the distinct (query heads, KV heads) of the layers, in order of appearance."""
    return tuple(dict.fromkeys((layer.num_heads, layer.num_kv_heads) for layer in model.layers))


def _tp_violations(model: ModelSpec, degree: int, num_gpus: int | None) -> list[str]:
    """Return what forbids a tensor-parallel degree, in words; empty when it's allowed.

    Query heads must divide by the degree. KV heads must divide by it, or the degree by them: each card then holds one
    KV head, replicated (the rule of vLLM and SGLang).
    """
    broken = []
    for heads, kv_heads in _head_shapes(model):
        if heads % degree:
            broken.append(f"{heads} heads % TP {degree} = {heads % degree}")
        if kv_heads % degree and degree % kv_heads:
            broken.append(f"{kv_heads} KV heads and TP {degree} do not divide each other")
    if num_gpus is not None and degree > num_gpus:
        broken.append(f"TP {degree} needs {degree} GPUs, there are {num_gpus}")
    return broken


def allowed_tp_degrees(model: ModelSpec, num_gpus: int | None = None) -> tuple[int, ...]:
    """Return the tensor-parallel degrees that all layers allow, ascending.

    Parameters
    ----------
    model
        The model.
    num_gpus
        Most cards of a group; ``None`` lists all up to the number of heads.
    """
    most = min(heads for heads, _ in _head_shapes(model))
    if num_gpus is not None:
        most = min(most, num_gpus)
    return tuple(d for d in range(1, most + 1) if not _tp_violations(model, d, num_gpus))


def check_divisibility(
    model: ModelSpec,
    tp_degrees: Iterable[int] = (1,),
    *,
    ep_degrees: Iterable[int] = (),
    num_experts: int | None = None,
    num_gpus: int | None = None,
) -> None:
    """Raise one InputError that lists every violated rule, and the degrees that are allowed.

    Parameters
    ----------
    model
        The model.
    tp_degrees
        Tensor-parallel degrees to check against heads and KV heads of all layers.
    ep_degrees
        Expert-parallel degrees to check against the number of experts.
    num_experts
        Routed experts of a layer; ``None`` means that the model has none, which forbids expert parallelism above 1.
    num_gpus
        Cards that a group may have; ``None`` doesn't limit it.

    Raises
    ------
    InputError
        When a degree is no whole number from 1, or breaks a rule.
    """
    broken: list[str] = []
    tensor, expert = list(tp_degrees), list(ep_degrees)
    for name, degrees in (("TP", tensor), ("EP", expert)):
        for degree in degrees:
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                raise InputError(f"{name} degree is {degree!r}, expected a whole number from 1")
    tp_broken = [text for degree in tensor for text in _tp_violations(model, degree, num_gpus)]
    if tp_broken:
        allowed = ", ".join(map(str, allowed_tp_degrees(model, num_gpus)))
        limit = "" if num_gpus is None else f" with {num_gpus} GPUs"
        broken += [*tp_broken, f"allowed TP degrees{limit}: {allowed}"]
    ep_broken = []
    for degree in expert:
        if num_experts is None and degree > 1:
            ep_broken.append(f"EP {degree} for a model without experts")
        elif num_experts is not None and num_experts % degree:
            ep_broken.append(f"{num_experts} experts % EP {degree} = {num_experts % degree}")
        if num_gpus is not None and degree > num_gpus:
            ep_broken.append(f"EP {degree} needs {degree} GPUs, there are {num_gpus}")
    if ep_broken:
        most = min(num_experts or 1, num_gpus or num_experts or 1)
        allowed = ", ".join(str(d) for d in range(1, most + 1) if (num_experts or 1) % d == 0)
        broken += [*ep_broken, f"allowed EP degrees: {allowed}"]
    if broken:
        raise InputError(f"{model.name}: {'; '.join(broken)}")
