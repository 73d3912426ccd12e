"""vLLM's scheduler, as vLLM would choose it, that answers for many tokens at a time.

By itself it tells the process that asked of every token of every request, with three arrays for its log-prob. For some
hundred requests to a small model, packing, unpacking and adding them up is a fifth of the time.
"""

from typing import Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import LogprobsLists

TOKENS = 16
"""of a request, that are told together after its first; an aborted request loses those that were not told yet"""


def make(**arguments: Any) -> Any:
    """What vLLM calls as its ``scheduler_cls``."""
    asynchronous = arguments["vllm_config"].scheduler_config.async_scheduling
    return (GatheringAsyncScheduler if asynchronous else GatheringScheduler)(**arguments)


class _Gathering:
    """Before one of vLLM's schedulers."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._held: dict[str, list[Any]] = {}

    def update_from_output(self, *step: Any, **more: Any) -> Any:
        by_client = super().update_from_output(*step, **more)  # type: ignore[misc]
        for told in by_client.values():
            told.outputs = [output for output in told.outputs if self._is_due(output)]
        return by_client

    def finish_requests(self, *asked: Any, **more: Any) -> Any:
        requests = super().finish_requests(*asked, **more)  # type: ignore[misc]
        for request in requests:
            self._held.pop(request.request_id, None)
        return requests

    def _is_due(self, output: Any) -> bool:
        """Whether to tell it now, which it then does for all that were held back."""
        held = self._held.setdefault(output.request_id, [])
        held.append(output)
        first = output.prefill_stats is not None
        if not (first or output.finished or output.events or len(held) >= TOKENS):
            return False
        del self._held[output.request_id]
        output.new_token_ids = [token for each in held for token in each.new_token_ids]
        log_probs = [each.new_logprobs[:3] for each in held if each.new_logprobs is not None]
        if log_probs:
            output.new_logprobs = LogprobsLists(*map(np.concatenate, zip(*log_probs, strict=True)), None)
        return True


class GatheringScheduler(_Gathering, Scheduler):  # type: ignore[misc]
    pass


class GatheringAsyncScheduler(_Gathering, AsyncScheduler):  # type: ignore[misc]
    pass
