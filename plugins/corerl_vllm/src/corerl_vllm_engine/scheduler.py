"""vLLM's scheduler, as vLLM would choose it, which sends log-probs many tokens at a time.

By itself it sends three arrays for every token of every request to the process that asked. For some hundred requests
at a time, packing and unpacking them takes longer than the model's step.
"""

from typing import Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import LogprobsLists

TOKENS = 16
"""of a request, whose log-probs are sent together; an aborted request loses those that were not sent yet"""


def make(**arguments: Any) -> Any:
    """What vLLM calls as its ``scheduler_cls``."""
    asynchronous = arguments["vllm_config"].scheduler_config.async_scheduling
    return (PatientAsyncScheduler if asynchronous else PatientScheduler)(**arguments)


class _Patient:
    """Before one of vLLM's schedulers."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._held: dict[str, list[LogprobsLists]] = {}

    def update_from_output(self, *step: Any, **more: Any) -> Any:
        outputs = super().update_from_output(*step, **more)  # type: ignore[misc]
        for each in outputs.values():
            for output in each.outputs:
                self._hold(output)
        return outputs

    def finish_requests(self, *asked: Any, **more: Any) -> Any:
        requests = super().finish_requests(*asked, **more)  # type: ignore[misc]
        for request in requests:
            self._held.pop(request.request_id, None)
        return requests

    def _hold(self, output: Any) -> None:
        held = self._held.setdefault(output.request_id, [])
        if output.new_logprobs is not None:
            held.append(output.new_logprobs)
            output.new_logprobs = None
        if output.finished or len(held) >= TOKENS:
            del self._held[output.request_id]
            if held:
                ids, log_probs, ranks, _ = zip(*held, strict=True)
                output.new_logprobs = LogprobsLists(*map(np.concatenate, (ids, log_probs, ranks)), None)


class PatientScheduler(_Patient, Scheduler):  # type: ignore[misc]
    pass


class PatientAsyncScheduler(_Patient, AsyncScheduler):  # type: ignore[misc]
    pass
