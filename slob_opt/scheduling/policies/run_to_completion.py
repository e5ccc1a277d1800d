"""Run to completion: a batch is formed, computed until its last member ends, and only then the next one is formed.

References
----------
NVIDIA FasterTransformer with Triton's dynamic batcher, as described by Yu et al. 2022 (Orca), section 2.2. Choices:
streamed or not, and whether finished members leave the batch (``drops_finished``) or keep computing, as in a padded
engine of that kind, are parameters, since the sources don't agree on one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.policies.fcfs import MANY, reservable, with_whole_prompts
from slob_opt.scheduling.policy import KvUse, LaneView


@dataclass(frozen=True, slots=True)
class RunToCompletionPolicy:
    """First come, first served, a whole batch at a time, with KV reserved.

    Attributes
    ----------
    drops_finished
        Whether finished members leave the batch.
    is_streamed
        Whether clients get tokens as they come; otherwise when the batch ends.
    """

    drops_finished: bool = False
    is_streamed: bool = False
    name: str = "rtc"
    kv_use: KvUse = KvUse.RESERVE

    @property
    def holds_finished(self) -> bool:
        """Whether finished members keep row and blocks."""
        return not self.drops_finished

    def decide(self, view: LaneView) -> BatchPlan | None:
        """Return the batch one token later, or a new batch when the last one is over."""
        if view.rows.size:
            return BatchPlan.decode(view.rows, max_repeats=MANY, idle_rows=view.idle_rows)
        return with_whole_prompts(view, view.rows, reservable(view))
