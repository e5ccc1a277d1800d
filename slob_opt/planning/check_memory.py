"""Re-checks the claim that no plan fits into memory, in whole bytes."""

from __future__ import annotations

import numpy as np

from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.ticks import group_index, row_ticks
from slob_opt.planning.verdict import Verdict, claimed, failed, refuted, verified
from slob_opt.planning.witness import MemoryWitness


def check_memory_witness(instance: PlacementInstance, witness: MemoryWitness) -> Verdict:
    """Return whether total memory proves that no plan exists.

    For each iteration shape, with the fewest sequences it may hold: the bytes of all layers with embedding and head, by
    the class that needs the fewest, against what all cards offer beside their workspace. Where bytes would do, whole
    layers may not: a device holds only as many of the smallest layers as fit.
    """
    if witness.need_bytes <= witness.have_bytes:
        return refuted(f"the witness itself needs {witness.need_bytes} bytes and has {witness.have_bytes}")
    table = instance.table
    groups = group_index(table)
    rows = row_ticks(instance, groups)
    cards_of_class = {int(c): int(n) for c, n in zip(groups.classes, groups.cards_per_device, strict=True)}
    for row in rows:
        sequences = row.batch_size * (1 if instance.is_throughput else row.max_micro_batches)
        need = beside = None
        for c, num_cards in sorted(cards_of_class.items()):
            held = num_cards * (table.weight_bytes[c] + sequences * table.kv_bytes[c])
            extra = table.embed_bytes[c] + table.head_bytes[row.row, c] - table.tied_saving_bytes[c]
            need = held if need is None else np.minimum(need, held)
            beside = min(num_cards * int(extra), num_cards * int(extra) if beside is None else beside)
        if need is None or beside is None:
            return claimed("the table has no devices")
        free_of_card: dict[int, int] = {}
        for device, cards_of_device in enumerate(table.device_cards):
            c = int(table.device_class[device])
            free = max(0, int(table.capacity_bytes[c] - table.workspace_bytes[row.row, c]))
            for card in cards_of_device:
                free_of_card[card] = max(free, free_of_card.get(card, 0))
        # A saving by tied weights needs one device for everything; else embedding and head may lie on two classes.
        cards = groups.cards_per_device
        apart = int((row.embed_bytes * cards).min() + (row.head_bytes * cards).min())
        need_bytes, have_bytes = int(need.sum()) + max(0, min(beside, apart)), sum(free_of_card.values())
        layers = row.memory_caps(sequences)
        room = int(np.maximum(layers, 0) @ groups.available)
        if need_bytes <= have_bytes and room >= table.num_layers:
            reason = (
                f"with b = {row.batch_size} a plan needs at least {need_bytes} bytes and all cards have {have_bytes}, "
                f"in whole layers {table.num_layers} and {room}: total memory excludes no plan"
            )
            return failed(reason, is_exact=table.has_identical_layers and groups.has_exclusive_devices)
    return verified(f"{table.num_layers} layers do not fit into all cards together, in any of {len(rows)} shapes")
