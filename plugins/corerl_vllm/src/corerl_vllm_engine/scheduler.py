"""The scheduler that vLLM would choose, with less work for each token; with hundreds of requests it limits the speed.

vLLM's scheduler reports every token of every request to the calling process, with three arrays for its log-prob;
packing, unpacking and adding them up takes a fifth of the time. For each token it also asks its memory manager, which
finds that a token in the middle of a block needs nothing: half of the scheduling time.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import LogprobsLists

TOKENS = 16
"""tokens of a request that are reported together after its first; an aborted request loses unreported tokens"""

SETTLED = 2
"""tokens at the start of a block for which the manager is asked: it may learn the last token of a block a step late"""


REPORT_SECONDS = 0.1
"""seconds between two reports of the load"""

PREEMPTED = "corerl_preempted"
"""key of the number of preemptions so far, in the dictionary of vLLM's statistics that connectors use"""


def make(**arguments: Any) -> Any:
    """The factory that vLLM calls as its ``scheduler_cls``."""
    asynchronous = arguments["vllm_config"].scheduler_config.async_scheduling
    return (GatheringAsyncScheduler if asynchronous else GatheringScheduler)(**arguments)


def asked_at_the_ends_of_blocks(manager: Any) -> Callable[..., Any]:
    """``allocate_slots`` of vLLM's KVCacheManager, with fewer calls for models of full attention; unchanged for others.

    A token inside a block needs no memory, and completes no block that other requests could share.
    """
    allocate: Callable[..., Any] = manager.allocate_slots
    nothing = manager.empty_kv_cache_blocks
    groups = manager.coordinator.single_type_managers
    if [type(group).__name__ for group in groups] != ["FullAttentionManager"]:
        return allocate
    size = groups[0].block_size

    def allocate_slots(request: Any, num_new_tokens: int, num_lookahead_tokens: int = 0, **more: Any) -> Any:
        place = request.num_computed_tokens % size
        if num_new_tokens == 1 and SETTLED <= place < size - 1 and not num_lookahead_tokens and not more:
            return nothing
        return allocate(request, num_new_tokens, num_lookahead_tokens=num_lookahead_tokens, **more)

    return allocate_slots


class _Gathering:
    """A wrapper of one of vLLM's schedulers."""

    kv_cache_manager: Any
    requests: Any
    running: Any

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._held: dict[str, list[Any]] = {}
        self._preempted, self._reported = 0, 0.0
        self.kv_cache_manager.allocate_slots = asked_at_the_ends_of_blocks(self.kv_cache_manager)

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

    def _preempt_request(self, *asked: Any, **more: Any) -> Any:
        self._preempted += 1
        return super()._preempt_request(*asked, **more)  # type: ignore[misc]

    def make_stats(self, *asked: Any, **more: Any) -> Any:
        """A few of vLLM's statistics now and then, even if vLLM makes none for its log."""
        stats = super().make_stats(*asked, **more)  # type: ignore[misc]
        now = time.monotonic()
        if stats is not None or now - self._reported < REPORT_SECONDS:
            return stats
        self._reported, running = now, len(self.running)
        return SchedulerStats(
            num_running_reqs=running,
            num_waiting_reqs=len(self.requests) - running,
            kv_cache_usage=self.kv_cache_manager.usage,
            kv_connector_stats={PREEMPTED: self._preempted},
        )

    def reset_prefix_cache(self, *asked: Any, **more: Any) -> Any:
        """With requests: their ids -> their tokens so far, with those that were not reported yet; vLLM returns True."""
        tokens = {name: request.num_output_tokens for name, request in self.requests.items()}
        before = self._preempted
        reset = super().reset_prefix_cache(*asked, **more)  # type: ignore[misc]
        self._preempted = before  # an update takes the cache of all
        return tokens if reset and tokens else reset

    def _is_due(self, output: Any) -> bool:
        """Whether to report this output now, together with all held back ones."""
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
