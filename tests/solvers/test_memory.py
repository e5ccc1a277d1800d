import pytest
from solver_instances import random_table

from solvers.memory import fits, layer_counts, misfits


@pytest.mark.parametrize("seed", range(12))
def test_layer_counts_and_misfits_agree_with_bytes(seed: int) -> None:
    """Each (first, end) of each device is told to fit exactly when its bytes do."""
    table = random_table(seed, 3, 6, is_uniform=True, is_identical=True)
    for device in range(3):
        for sequences in (1, 4, 16):
            counts = layer_counts(table, 1, device, sequences)
            bad = misfits(table, 1, device, sequences)
            for first in range(6):
                for end in range(first + 1, 7):
                    whole, role = (first, end) == (0, 6), counts.middle
                    if first == 0:
                        role = counts.first
                    elif end == 6:
                        role = counts.last
                    told = counts.has_whole if whole else end - first <= role
                    truth = fits(table, 1, device, (first, end), sequences)
                    assert told == truth
                    assert (end not in bad[first]) == truth
