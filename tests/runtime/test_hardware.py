from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from measured_profiles import profile_for, small_model

from runtime.hardware import check_hardware, cpu_name, find_hardware
from slob_opt.errors import InputError


def test_this_cpu_is_told_with_its_threads_and_torch() -> None:
    found = find_hardware("cpu", threads=1)
    assert (found.kind, found.threads, found.torch) == ("cpu", 1, torch.__version__)
    assert found.name == cpu_name()
    assert found.name


def test_a_profile_of_this_machine_is_taken() -> None:
    found = find_hardware("cpu", threads=1)
    check_hardware(replace(profile_for(small_model()), hardware=found), found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Other CPU"}, "name .*, measured was 'Other CPU'"),
        ({"threads": 7}, "threads 1, measured was 7"),
        ({"torch": "1.0"}, "torch .*, measured was '1.0'"),
        ({"kind": "cuda"}, "kind 'cpu', measured was 'cuda'"),
    ],
)
def test_a_profile_of_other_hardware_is_refused_with_the_difference(change: dict[str, object], message: str) -> None:
    found = find_hardware("cpu", threads=1)
    profile = replace(profile_for(small_model()), hardware=replace(found, **change))
    with pytest.raises(InputError, match=message):
        check_hardware(profile, found)


@pytest.mark.parametrize("device", ["tpu", "meta", "cuda:99"])
def test_devices_that_arent_here_are_refused(device: str) -> None:
    with pytest.raises(InputError, match="device"):
        find_hardware(device)
