from __future__ import annotations

import pytest

from runtime.calibration_transfers import TOKENS, measure_link
from slob_opt.errors import InputError


@pytest.mark.parametrize("kind", ["local", "tcp"])
def test_steps_are_sent_to_a_process_and_timed(kind: str) -> None:
    fit = measure_link(kind, 64, "bfloat16", runs=4)
    assert [transfer.num_bytes for transfer in fit.transfers] == [128 * tokens for tokens in TOKENS]
    assert fit.link.latency_s > 0
    assert fit.link.bytes_per_s > 0


def test_an_unknown_link_is_refused() -> None:
    with pytest.raises(InputError, match="found link 'pigeon', expected one of local, tcp"):
        measure_link("pigeon", 64, "float32")
