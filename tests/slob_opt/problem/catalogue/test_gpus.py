from __future__ import annotations

import json

import pytest
from reference_data import reference_file

from slob_opt.errors import InputError
from slob_opt.problem.catalogue import gpu, gpu_device, gpu_ids, is_ambiguous_gpu


def facts(name: str) -> dict:
    return json.loads(reference_file(name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("alias", "id_"),
    [
        ("A100-40G", "a100-sxm4-40gb"),
        ("A100-80G", "a100-sxm4-80gb"),
        ("A100", "a100-sxm4-40gb"),
        ("RTX 4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("V100", "v100-sxm2-16gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("NVIDIA L4", "l4"),
        ("RTX A6000", "rtx-a6000"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_aliases(alias, id_):
    assert gpu(alias).id == id_


def test_only_names_without_a_variant_are_ambiguous():
    assert is_ambiguous_gpu("A100")
    assert is_ambiguous_gpu("v100")
    assert not is_ambiguous_gpu("A100-40G")
    assert not is_ambiguous_gpu("rtx-4090")


def test_every_entry_is_found_by_its_id_and_name():
    for id_ in gpu_ids():
        assert gpu(id_).id == id_
        assert gpu(gpu(id_).name).id == id_


def test_an_unknown_gpu_names_the_nearest():
    with pytest.raises(InputError, match="'RTX 4091' is not in the catalogue; did you mean rtx-4090"):
        gpu("RTX 4091")
    with pytest.raises(InputError, match="the catalogue has"):
        gpu("abacus")


def test_numbers_are_plausible_and_say_where_they_come_from():
    assert len(gpu_ids()) >= 50
    for id_ in gpu_ids():
        card = gpu(id_)
        assert 8 * 2**30 <= card.memory_bytes <= 400 * 2**30
        assert 0.9 * card.memory_bytes <= card.usable_bytes <= 1.01 * card.memory_bytes
        assert 1e11 <= card.bytes_per_s <= 1e13
        assert 5e12 <= card.fp16_flops <= 3e15
        assert card.profile.source.split(":")[0] in ("measured", "inferred")
        assert card.profile.layer_overhead_s == 32e-6
        assert card.profile.step_overhead_s == 126e-6
        for share in ("gemm_compute_eff", "gemm_mem_eff", "attn_mem_eff", "attn_compute_eff"):
            assert 0 < getattr(card.profile, share) <= 1
        assert card.sources


def test_a_card_without_matrix_cores_has_its_native_peak():
    assert gpu("gtx-1080-ti").fp16_flops == gpu("gtx-1080-ti").fp32_flops
    assert gpu("p100-sxm2-16gb").fp16_flops == 21.2e12


def test_a_module_of_two_devices_is_listed_as_one_of_them():
    card = gpu("mi250x")
    assert (card.memory_bytes, card.bytes_per_s, card.fp16_flops) == (64 * 2**30, 1638.4e9, 191.5e12)


def test_a_device_has_the_memory_that_the_driver_reports():
    card = gpu_device("T4", "box/0")
    assert (card.name, card.gpu, card.memory_bytes) == ("box/0", "t4", 15360 * 2**20)
    assert gpu_device("rtx-3090", "x").memory_bytes == 24 * 2**30  # nothing reported: nominal


def test_the_numbers_are_those_of_the_facts():
    for row in facts("gpus.json")["gpus"]:
        if row["id"] == "mi250x":
            continue  # listed there as the module of two devices
        card = gpu(row["id"])
        assert card.memory_bytes == row["mem_bytes"]
        assert card.bytes_per_s == pytest.approx(row["mem_bw_gbs"] * 1e9, rel=1e-9)
        if row["fp16_tensor_dense_tflops"] is not None:
            assert card.has_matrix_cores
            assert card.fp16_flops == pytest.approx(row["fp16_tensor_dense_tflops"] * 1e12, rel=1e-9)
        if row["nvlink_gbs_bidir"] is not None:
            assert card.nvlink_bytes_per_s == pytest.approx(row["nvlink_gbs_bidir"] * 1e9 / 2)
        assert len(card.uncertain) >= len(row["uncertain"])


@pytest.mark.parametrize(
    ("id_", "row"),
    [
        ("a100-sxm4-80gb", "a100_sxm"),
        ("h100-sxm5-80gb", "h100_sxm"),
        ("h200-sxm-141gb", "h200_sxm"),
        ("b200-sxm-180gb", "b200_sxm"),
        ("l40s", "l40s"),
        ("rtx-pro-6000-bw-server", "rtx_pro_6000_server"),
        ("arc-pro-b60", "b60"),
        ("rtx-4090", "llmservingsim_rtx4090"),
        ("rtx-3090", "llmservingsim_rtx3090"),
        ("rtx-a6000", "llmservingsim_a6000"),
        ("a40", "vidur_a40"),
    ],
)
def test_measured_profiles_are_those_of_the_facts(id_, row):
    want = facts("gpu_efficiency.json")["summary"][row]
    have = gpu(id_).profile
    assert have.source.startswith("measured")
    assert have.gemm_compute_eff == want["gemm_compute_eff"]
    assert have.gemm_mem_eff == want["gemm_mem_eff"]
    assert have.gemm_t0_s == pytest.approx(want["gemm_t0_us"] * 1e-6)
    assert have.p_norm == want["gemm_p_norm"]
    if want["decode_attn_bw_eff"] is not None:
        assert have.attn_mem_eff == want["decode_attn_bw_eff"]
        assert have.attn_t0_s == pytest.approx(want["decode_attn_t0_us"] * 1e-6)
    else:
        assert "attn_mem_eff" in have.source  # what isn't measured is said to be inferred
    if "prefill_attn_flops_eff" in want:
        assert have.attn_compute_eff == want["prefill_attn_flops_eff"]["2048"]
    else:
        assert "attn_compute_eff" in have.source
