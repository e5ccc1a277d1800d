"""Every policy, for the contract tests."""

from __future__ import annotations

from slob_opt.scheduling.policies.andes import AndesPolicy, Metric
from slob_opt.scheduling.policies.chunked import ChunkedPolicy
from slob_opt.scheduling.policies.fcfs import OrcaPagedPolicy, OrcaPolicy
from slob_opt.scheduling.policies.mlfq import MlfqPolicy
from slob_opt.scheduling.policies.prefill_first import PrefillFirstPolicy
from slob_opt.scheduling.policies.run_to_completion import RunToCompletionPolicy
from slob_opt.scheduling.policies.srpt import SrptPolicy
from slob_opt.slob.batching import SlobPolicy

POLICIES = {
    "orca": OrcaPolicy(),
    "orca-paged": OrcaPagedPolicy(),
    "prefill-first": PrefillFirstPolicy(),
    "chunked": ChunkedPolicy(),
    "chunked-priority": ChunkedPolicy(by_priority=True),
    "mlfq": MlfqPolicy(),
    "mlfq-small": MlfqPolicy(max_batch=2, starvation_s=0.2, takes_kv=True),
    "andes": AndesPolicy(),
    "andes-satisfaction": AndesPolicy(metric=Metric.SATISFACTION, horizon_s=0.5, ttft_s=0.05, tokens_per_s=200.0),
    "srpt-clairvoyant": SrptPolicy(),
    "slob": SlobPolicy(),
    "rtc": RunToCompletionPolicy(),
    "rtc-drops": RunToCompletionPolicy(drops_finished=True),
    "rtc-streamed": RunToCompletionPolicy(is_streamed=True),
}
