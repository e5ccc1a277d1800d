"""Every policy, for the contract tests."""

from __future__ import annotations

from slob_opt.scheduling.policies.chunked import ChunkedPolicy
from slob_opt.scheduling.policies.fcfs import OrcaPagedPolicy, OrcaPolicy
from slob_opt.scheduling.policies.prefill_first import PrefillFirstPolicy
from slob_opt.scheduling.policies.run_to_completion import RunToCompletionPolicy
from slob_opt.slob.batching import SlobPolicy

POLICIES = {
    "orca": OrcaPolicy(),
    "orca-paged": OrcaPagedPolicy(),
    "prefill-first": PrefillFirstPolicy(),
    "chunked": ChunkedPolicy(),
    "slob": SlobPolicy(),
    "rtc": RunToCompletionPolicy(),
    "rtc-drops": RunToCompletionPolicy(drops_finished=True),
    "rtc-streamed": RunToCompletionPolicy(is_streamed=True),
}
