"""Four synthetic workloads of small sites, and a small sampled trace that ships with the package.

The numbers and what each rests on are in ``presets.json`` beside this module.

>>> preset_ids()
('office_chat', 'shop_floor_qa', 'doc_summary', 'code_assistant')
>>> sample_preset("shop_floor_qa", 0, days=1).num_requests > 5000
True
"""

from __future__ import annotations

from slob_opt.problem.presets.data import EXAMPLE_TRACE, Preset, load_preset, preset_ids
from slob_opt.problem.presets.sampling import sample_preset

__all__ = ["EXAMPLE_TRACE", "Preset", "load_preset", "preset_ids", "sample_preset"]
