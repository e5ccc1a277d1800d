"""How far the cost model is from reference times: kernel sums, 2023 phase times and serving runs of today."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slob_opt.cost.batch import BatchShape, round_half_up
from slob_opt.cost.memory import activation_bytes, kv_bytes, logits_bytes, weight_bytes
from slob_opt.cost.roofline import CardGroup, stage_s
from slob_opt.errors import InputError
from slob_opt.problem import catalogue
from slob_opt.problem.architecture import Architecture, ExpertShape, build_model
from slob_opt.problem.device import ComputeProfile, Device, Link
from slob_opt.problem.model import ModelSpec

KERNEL_LAYER_OVERHEAD_S = 12e-6
"""Seconds a layer for the small kernels that the reference sums of kernels hold beside products and attention."""

_SPLITWISE_CARDS = {"a100-80gb": "a100_sxm", "h100-80gb": "h100_sxm"}

_CATALOGUE_IDS = {
    "a100_sxm": "a100-sxm4-80gb",
    "h100_sxm": "h100-sxm5-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "b200_sxm": "b200-sxm-180gb",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-bw-server",
    "b60": "arc-pro-b60",
    "llmservingsim_rtx4090": "rtx-4090",
}
"""Summary rows by the catalogue's name of the card; the others are newer than the catalogue."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One reference time and what the cost model says.

    Attributes
    ----------
    gpu, model, degree
        Where: type of card, model, tensor-parallel degree.
    phase
        ``"decode"``, ``"prefill"`` or ``"mixed"``.
    point
        The batch in words.
    modelled_s, reference_s
        Times of one iteration, seconds.
    """

    gpu: str
    model: str
    degree: int
    phase: str
    point: str
    modelled_s: float
    reference_s: float

    @property
    def error(self) -> float:
        """Relative error, positive when the model is too slow."""
        return self.modelled_s / self.reference_s - 1


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of one GPU, model, degree and phase.

    Attributes
    ----------
    gpu, model, degree, phase
        What is summarised.
    num_points
        Points compared.
    mape, bias
        Mean of the absolute and of the signed relative errors.
    worst
        The point with the largest absolute error.
    """

    gpu: str
    model: str
    degree: int
    phase: str
    num_points: int
    mape: float
    bias: float
    worst: Comparison


def summarise(comparisons: Iterable[Comparison]) -> tuple[ErrorSummary, ...]:
    """Return one summary for each GPU, model, degree and phase, in order of first appearance."""
    groups: dict[tuple[str, str, int, str], list[Comparison]] = {}
    for c in comparisons:
        groups.setdefault((c.gpu, c.model, c.degree, c.phase), []).append(c)
    return tuple(
        ErrorSummary(
            *key,
            num_points=len(found),
            mape=sum(abs(c.error) for c in found) / len(found),
            bias=sum(c.error for c in found) / len(found),
            worst=max(found, key=lambda c: abs(c.error)),
        )
        for key, found in groups.items()
    )


class Reference:
    """Reference measurements and the devices and models they were made on.

    Parameters
    ----------
    folder
        Folder with ``measured_e2e.json`` and ``gpu_efficiency.json``.

    Raises
    ------
    InputError
        When one of them is missing or no JSON.
    """

    def __init__(self, folder: Path) -> None:
        self.efficiency = _read(folder / "gpu_efficiency.json")
        self.measured = _read(folder / "measured_e2e.json")

    def group(self, key: str, degree: int) -> CardGroup:
        """Return `degree` cards of a summary row, as the catalogue has them where it does; engine time as by default.

        The link of a group is the measured all-reduce: its bus bandwidth, and its shortest time as latency.

        Raises
        ------
        InputError
            When no all-reduce among that many cards was measured.
        """
        row: dict[str, Any] = self.efficiency["summary"][key]
        if key in _CATALOGUE_IDS:
            device = catalogue.gpu_device(_CATALOGUE_IDS[key], _CATALOGUE_IDS[key])
        else:
            device = _device_of_summary(key, row, self.efficiency["aiconfigurator"][key]["peaks_used"])
        if degree == 1:
            return CardGroup(device)
        measured = (row.get("allreduce_small_us_and_busbw_gbs") or {}).get(f"n{degree}")
        if measured is None:
            raise InputError(f"no all-reduce among {degree} cards of {key}")
        return CardGroup(device, degree, Link(measured[1] * 1e9, measured[0] * 1e-6))

    def model(self, model_id: str) -> ModelSpec:
        """Return a model of the catalogue, or Qwen3-30B-A3B, whose widths are given here."""
        if model_id != "qwen3-30b-a3b":
            return catalogue.model(model_id)
        experts = ExpertShape(128, 8, 768)  # config.json of Qwen/Qwen3-30B-A3B-Instruct-2507
        return build_model(Architecture(model_id, 2048, 48, 32, 4, 128, 6144, 151936, qk_norm="head", experts=experts))

    def kernel_sums(self) -> tuple[Comparison, ...]:
        """Return comparisons with sums of measured kernels (AIConfigurator 0.12.0), which hold no engine time."""
        found: list[Comparison] = []
        for key, row in self.efficiency["aic_step_predictions"]["rows"].items():
            gpu, name, tp = key.split(":")
            degree = int(tp.removeprefix("tp"))
            group = without_engine(self.group(gpu, degree))
            model = self.model({"8B": "llama-3.1-8b", "70B": "llama-3.1-70b"}[name.rsplit("-", 1)[1]])

            def compare(phase: str, point: str, shape: BatchShape, ms: float) -> None:
                seconds = stage_s(group, model, 0, model.num_layers, shape)  # noqa: B023  # called in this turn only
                found.append(Comparison(group.device.gpu, model.name, degree, phase, point, seconds, ms * 1e-3))  # noqa: B023

            for batch, by_context in row["decode_ms"].items():
                for context, ms in by_context.items():
                    b, c = int(batch[1:]), int(context[3:])
                    compare("decode", f"{b} x {c}", BatchShape.ragged((c,) * b), ms)
            for size, ms in row["prefill_ms"].items():
                compare("prefill", f"1 x {size[1:]}", BatchShape.ragged((), ((0, int(size[1:])),)), ms)
            for mix, ms in row.get("mixed_ms_chunk512", {}).items():
                b, c = (int(part.lstrip("bctx")) for part in mix.split("_"))
                compare("mixed", f"{b} x {c} + 512", BatchShape.ragged((c,) * b, ((0, 512),)), ms)
        return tuple(found)

    @property
    def num_phase_times(self) -> int:
        """Splitwise's phase times at full power, two a row, possible or not."""
        rows = self.measured["splitwise_phase_times"]["rows"]
        return 2 * sum(r["hardware"] in _SPLITWISE_CARDS for r in rows)

    def phase_times(self, *, has_eager_floor: bool) -> tuple[Comparison, ...]:
        """Return comparisons with Splitwise's phase times (DGX A100 and H100, engines of 2023).

        Parameters
        ----------
        has_eager_floor
            Whether the engine's floor is put in: no iteration is shorter than the shortest decode step measured for
            that card and model at any degree, since an eager engine waits for its launches.

        Notes
        -----
        Rows that would need more than the cards' peak FLOP/s are left out (see :func:`is_possible`).
        """
        cards = _SPLITWISE_CARDS
        rows = [r for r in self.measured["splitwise_phase_times"]["rows"] if r["hardware"] in cards]
        floors: dict[tuple[str, str], float] = {}
        for r in rows:
            key = (r["hardware"], r["model"])
            floors[key] = min(floors.get(key, float("inf")), r["token_ms"] * 1e-3)
        found = []
        for r in rows:
            group = self.group(cards[r["hardware"]], r["tp"])
            model = self.model({"llama2-70b": "llama-2-70b"}.get(r["model"], r["model"]))
            floor = floors[r["hardware"], r["model"]] if has_eager_floor else 0.0
            context = r["prompt"] + r["out_tokens"] // 2
            for phase, shape, ms in (
                ("decode", BatchShape.ragged((context,) * r["batch"]), r["token_ms"]),
                ("prefill", BatchShape.ragged((), ((0, r["prompt"]),) * r["batch"]), r["prompt_ms"]),
            ):
                if not is_possible(group, model, shape, ms * 1e-3):
                    continue
                seconds = max(floor, stage_s(group, model, 0, model.num_layers, shape))
                point = f"{r['batch']} x {context if phase == 'decode' else r['prompt']}"
                found.append(Comparison(group.device.gpu, model.name, r["tp"], phase, point, seconds, ms * 1e-3))
        return tuple(found)

    def serving_runs(self) -> tuple[Comparison, ...]:
        """Return comparisons of the mean time per output token of vLLM 0.19 runs with the average iteration.

        The mean number of decodes in flight follows from the run itself (Little's law: output tokens times time per
        token over makespan); the iteration carries its share of prefill.
        """
        cards = {"RTX4090": "llmservingsim_rtx4090", "RTXPRO6000": "rtx_pro_6000_server"}
        models = {
            "Llama-3.1-8B": "llama-3.1-8b",
            "Qwen3-32B": "qwen3-32b",
            "Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
        }
        found = []
        for run in self.measured["vllm_serving_runs"]["runs"]:
            degree = run["engine_kwargs"]["tensor_parallel_size"]
            replicas = run["engine_kwargs"]["data_parallel_size"]
            group, model = self.group(cards[run["hardware"]], degree), self.model(models[run["model"]])
            tpot_s = run["tpot_ms"]["mean"] * 1e-3
            prompt = round_half_up(run["input_tokens"] / run["requests"])
            output = round_half_up(run["output_tokens"] / run["requests"])
            b = max(1, round_half_up(run["output_tokens"] * tpot_s / run["makespan_s"] / replicas))
            shape = BatchShape.average(b, prompt + output // 2, round_half_up(b * prompt / output), prompt)
            seconds = stage_s(group, model, 0, model.num_layers, shape)
            point = f"{b} x {prompt + output // 2} + {shape.prefill_tokens}"
            found.append(Comparison(group.device.gpu, model.name, degree, "mixed", point, seconds, tpot_s))
        return tuple(found)

    def kv_blocks(self, framework_bytes: int, nominal_bytes: int = 24 * 2**30) -> tuple[int, int]:
        """Return the KV tokens of the RTX 4090 serving run: by the memory model, and measured.

        Parameters
        ----------
        framework_bytes
            Bytes the framework takes besides weights, KV, activations and logits.
        nominal_bytes
            The card's memory.
        """
        run = next(r for r in self.measured["vllm_serving_runs"]["runs"] if r["kv_cache"])
        model, limits = self.model("llama-3.1-8b"), run["engine_kwargs"]
        usable = int(nominal_bytes * run["kv_cache"]["gpu_memory_utilization"])
        used = framework_bytes + sum(weight_bytes(model, layer) for layer in model.layers)
        used += 2 * (model.embedding_params + model.head_params)
        used += activation_bytes(model, limits["max_num_batched_tokens"]) + logits_bytes(model, limits["max_num_seqs"])
        block = run["kv_cache"]["block_size"]
        block_bytes = sum(kv_bytes(model, layer, block) for layer in model.layers)
        return (usable - used) // block_bytes * block, run["kv_cache"]["num_kv_tokens"]


def without_engine(group: CardGroup) -> CardGroup:
    """Return a group whose engine takes no time but the small kernels of a layer."""
    profile = replace(group.device.profile, layer_overhead_s=KERNEL_LAYER_OVERHEAD_S, step_overhead_s=0.0)
    return replace(group, device=replace(group.device, profile=profile))


def is_possible(group: CardGroup, model: ModelSpec, shape: BatchShape, seconds: float) -> bool:
    """Return whether the matrix products of an iteration fit into a measured time at the cards' full peak."""
    flops = 2.0 * shape.computed_tokens * sum(layer.active_params for layer in model.layers)
    return flops <= seconds * group.degree * group.device.peak_flops


def _device_of_summary(key: str, row: dict[str, Any], peaks: dict[str, float]) -> Device:
    """Return a card that the catalogue lacks, from its fitted shares."""
    profile = ComputeProfile(
        gemm_compute_eff=row["gemm_compute_eff"],
        gemm_mem_eff=row["gemm_mem_eff"],
        gemm_t0_s=row["gemm_t0_us"] * 1e-6,
        p_norm=row["gemm_p_norm"],
        attn_mem_eff=row["decode_attn_bw_eff"],
        attn_t0_s=row["decode_attn_t0_us"] * 1e-6,
        attn_compute_eff=row["prefill_attn_flops_eff"]["2048"],
        comm_t0_s=row["allreduce_small_us_and_busbw_gbs"]["n2"][0] * 1e-6,
        source="measured",
    )
    peak, bandwidth = peaks["bf16_dense_tflops"] * 1e12, peaks["mem_bw_gbs"] * 1e9
    return Device(key, key, 80 * 2**30, peak, bandwidth, profile)  # memory takes no part in time


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"can't be read as JSON: {error}", file=str(path)) from error
    return content
