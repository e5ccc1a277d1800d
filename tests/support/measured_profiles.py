"""Measured profiles, made up and by hypothesis, and models that they are for."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from slob_opt.problem.catalogue.models import model as catalogue_model
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Device, Link
from slob_opt.problem.measured import (
    Coefficient,
    FitQuality,
    HardwareFingerprint,
    MeasuredProfile,
    ModelFingerprint,
    Slope,
    with_dtype,
)
from slob_opt.problem.model import LayerSpec, ModelSpec

HARDWARE = HardwareFingerprint("cpu", "Some CPU", 1, "2.13.0")
FIT = FitQuality(80, 0.01, 0.05, 0.012, 0.06)


def small_model(num_layers: int = 8, windows: tuple[int | None, ...] = (None,)) -> ModelSpec:
    """A dense model of 64 wide layers in float32; windows repeat over its layers."""
    layers = tuple(
        LayerSpec(12_416, 24_576, 4, 2, 16, window_tokens=windows[i % len(windows)]) for i in range(num_layers)
    )
    return with_dtype(ModelSpec("small", 64, 256, layers, 16_384, 16_448), "float32")


def profile_for(model: ModelSpec, dtype: str = "float32") -> MeasuredProfile:
    """A profile with round numbers: 100 us a step, 10 us a layer, 20 and from 32 tokens 10 us a token and so on."""

    def us(value: float) -> float:
        return float(f"{value}e-6")  # the nearest number, as a file has it

    return MeasuredProfile(
        model=ModelFingerprint.of(model, dtype),
        hardware=HARDWARE,
        step=Coefficient(us(100), us(1)),
        layer=Coefficient(us(10), us(1)),
        layer_tokens=(Slope(0, us(20), us(1)), Slope(32, us(10), us(1))),
        decode_row=Coefficient(us(3)),
        chunk_row=Coefficient(us(5)),
        kv_token=Coefficient(us(0.02)),
        pair=Coefficient(us(0.005)),
        embedding=Coefficient(us(7)),
        embedding_token=Coefficient(us(0.5)),
        head=Coefficient(us(200)),
        head_rows=(Slope(0, us(50)),),
        fit=FIT,
    )


seconds = st.just(0.0) | st.floats(1e-9, 1e-3)
coefficients = st.builds(Coefficient, seconds, seconds)


@st.composite
def profiles(draw: st.DrawFn, model: ModelSpec | None = None) -> MeasuredProfile:
    """Any profile of a model in float32."""
    knots = sorted(draw(st.sets(st.integers(2, 2000), max_size=4)))
    start = draw(st.sampled_from([0, 1]))
    base = profile_for(model or small_model())
    names = ("step", "layer", "decode_row", "chunk_row", "kv_token", "pair")
    ends = ("embedding", "embedding_token", "head")
    return replace(
        base,
        head_rows=tuple(
            Slope(at, draw(seconds), draw(seconds)) for at in draw(st.sampled_from([(0,), (1, 2), (0, 3)]))
        ),
        layer_tokens=tuple(Slope(at, draw(seconds), draw(seconds)) for at in (start, *knots)),
        slowdown=draw(st.sampled_from([1.0, 1.5, 3.0])),
        **{name: draw(coefficients) for name in (*names, *ends)},
    )


def measured_card(name: str, profile: MeasuredProfile, memory_bytes: int = 2**30) -> Device:
    """A card that is known by its profile only, as a cluster file makes it."""
    return Device(name, profile.hardware.name, memory_bytes, 5e13, 5e11, measured=profile)


def measured_cluster(model: ModelSpec, slowdowns: tuple[float, ...], memory_bytes: int = 2**30) -> Cluster:
    """One machine with emulated cards."""
    profile = profile_for(model)
    cards = tuple(measured_card(f"box/{i}", profile.scaled(s), memory_bytes) for i, s in enumerate(slowdowns))
    return Cluster("emulated", (Node("box", cards),), Link(1e9, 1e-4), Link(2e9, 2e-5))


def llama_in_float32() -> ModelSpec:
    """A catalogue model in another number format than the catalogue's."""
    return with_dtype(catalogue_model("llama-2-7b"), "float32")
