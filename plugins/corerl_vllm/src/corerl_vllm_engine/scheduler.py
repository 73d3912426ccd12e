"""The scheduler that vLLM would choose, with less work for each token; with hundreds of requests it limits the speed.

vLLM's scheduler reports every token of every request to the calling process, with three arrays for its log-prob;
packing, unpacking and adding them up takes a fifth of the time. For each token it also asks its memory manager, which
finds that a token in the middle of a block needs nothing: half of the scheduling time. And for each token it looks at
everything that a request might need, twice: a token in the middle of a plain response is computed and appended.
"""

import time
from collections.abc import Callable, Mapping
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

STALE = ("async_tokens_to_discard", "num_stale_output_tokens")
"""counts of a request whose tokens under way are dropped; each release of vLLM has one of them"""

EXTRAS = (
    "prompt_logprobs_dict",
    "prompt_token_id_logprobs_dict",
    "pooler_output",
    "num_nans_in_logits",
    "kv_connector_output",
    "ec_connector_output",
    "routed_experts",
    "sampling_masks",
    "aux_output_connector_output",
)
"""what a step of the engine may return beside tokens and log-probs; each release of vLLM has some of them"""


REPORT_SECONDS = 0.1
"""seconds between two reports of the load"""

PART = "corerl_part"
"""key of the scheduler's data parallel rank there"""

PREEMPTED = "corerl_preempted"
"""key of the number of preemptions so far, in the dictionary of vLLM's statistics that connectors use"""


def make(**arguments: Any) -> Any:
    """The factory that vLLM calls as its ``scheduler_cls``."""
    config = arguments["vllm_config"]
    if config.model_config.is_multimodal_model:
        from corerl_vllm_engine.images import read_in_core

        read_in_core(config.model_config)
    asynchronous = config.scheduler_config.async_scheduling
    return (GatheringAsyncScheduler if asynchronous else GatheringScheduler)(**arguments)


def has_full_attention(manager: Any) -> bool:
    """Whether all layers have one kind of cache, which keeps every token."""
    return [type(group).__name__ for group in manager.coordinator.single_type_managers] == ["FullAttentionManager"]


def is_plain(step: Any, result: Any) -> bool:
    """Whether a step of the engine has nothing but sampled tokens with their log-probs."""
    return not (
        result.logprobs is None
        or len(result.req_ids) != len(step.num_scheduled_tokens)
        or result.logprobs.cu_num_generated_tokens is not None
        or step.scheduled_spec_decode_tokens
        or any(getattr(result, name, None) for name in EXTRAS)
    )


def is_at_end(place: int, size: int) -> bool:
    """Whether a token in this place of a block may need memory, or let other requests share a block."""
    return place < SETTLED or place == size - 1


def asked_at_the_ends_of_blocks(manager: Any) -> Callable[..., Any]:
    """``allocate_slots`` of vLLM's KVCacheManager, with fewer calls for models of full attention; unchanged for others.

    Only the first token of a block needs memory.
    """
    allocate: Callable[..., Any] = manager.allocate_slots
    nothing = manager.empty_kv_cache_blocks
    if not has_full_attention(manager):
        return allocate
    size = manager.coordinator.single_type_managers[0].block_size

    def allocate_slots(request: Any, num_new_tokens: int, num_lookahead_tokens: int = 0, **more: Any) -> Any:
        place = request.num_computed_tokens % size
        if num_new_tokens != 1 or not place or num_lookahead_tokens or more:
            return allocate(request, num_new_tokens, num_lookahead_tokens=num_lookahead_tokens, **more)
        if is_at_end(place, size):
            manager.cache_blocks(request, min(request.num_computed_tokens + 1, request.num_tokens))
        return nothing

    return allocate_slots


class _Response:
    """The tokens of a request that are not reported yet.

    Attributes:
        tokens: their ids.
        log_probs, ranks: of the tokens, if no most likely tokens are reported.
        parts: otherwise arrays of log-probs and a range of rows in them, which together are those of the tokens.
        experts: those of the tokens that were read, where vLLM returns them.
        pending: number of the last ``tokens`` that the request does not have yet.
        room: number of tokens that need nothing but to be appended, unless one ends the response.
        stops: tokens that end the response.
        longest: output tokens that end it.
        is_plain: whether the request needs one token a step, and nothing else.
        reported: number of most likely tokens that are reported at each position.
    """

    __slots__ = (
        "experts",
        "is_plain",
        "log_probs",
        "longest",
        "parts",
        "pending",
        "ranks",
        "reported",
        "request",
        "room",
        "stops",
        "tokens",
    )

    def __init__(self, request: Any, max_model_len: int) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.ranks: list[int] = []
        self.parts: list[tuple[Any, int, int]] = []
        self.experts: list[Any] = []
        self.is_plain, self.reported, self.pending, self.room = False, 0, 0, 0
        sampling = getattr(request, "sampling_params", None)
        if sampling is not None:
            self.stops = {sampling.eos_token_id, *(sampling.stop_token_ids or ())}
            self.reported = sampling.num_logprobs or 0
            self.longest = min(request.max_tokens, max_model_len - request.num_prompt_tokens)
            self.is_plain = sampling.num_logprobs is not None and not (
                sampling.min_tokens
                or sampling.repetition_detection
                or request.structured_output_request
                or request.has_encoder_inputs
                or request.resumable
            )

    def make_room(self) -> None:
        """Set ``room``, after vLLM's own function has taken in a token."""
        request, self.room = self.request, 0
        if self.is_plain and not any(getattr(request, name, 0) for name in STALE):
            self.room = max(0, min(TOKENS - 1 - len(self.tokens), self.longest - 1 - request.num_output_tokens))

    def note(self, log_probs: Any) -> None:
        """Keep the log-probs of tokens that vLLM's own function took in."""
        if self.reported:
            self.parts.append((log_probs, 0, len(log_probs.logprobs)))
        else:
            self.log_probs += log_probs.logprobs[:, 0].tolist()
            self.ranks += log_probs.sampled_token_ranks.tolist()

    def take(self) -> tuple[list[int], LogprobsLists | None]:
        """All of them, which are reported now."""
        tokens, log_probs, ranks, parts = self.tokens, self.log_probs, self.ranks, self.parts
        self.tokens, self.log_probs, self.ranks, self.parts = [], [], [], []
        if log_probs:
            ids, values = np.array(tokens, np.int32)[:, None], np.array(log_probs, np.float32)[:, None]
            return tokens, LogprobsLists(ids, values, np.array(ranks, np.int32), None)
        if not parts:
            return tokens, None
        width = 1 + self.reported  # a step's arrays are as wide as its widest request
        cut = [
            (step[0][start:end, :width], step[1][start:end, :width], step[2][start:end]) for step, start, end in parts
        ]
        return tokens, LogprobsLists(*map(np.concatenate, zip(*cut, strict=True)), None)


class _Gathering:
    """A wrapper of one of vLLM's schedulers."""

    kv_cache_manager: Any
    requests: Any
    running: Any
    max_model_len: int
    max_num_scheduled_tokens: int
    pause_state: Any
    use_v2_model_runner: bool
    prev_step_scheduled_req_ids: set[str]
    placeholder = 0
    """1: tokens under way count as output of the request"""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._responses: dict[str, _Response] = {}
        self._preempted, self._reported = 0, 0.0
        parallel = arguments["vllm_config"].parallel_config
        self._part = parallel.data_parallel_rank
        self.kv_cache_manager.allocate_slots = asked_at_the_ends_of_blocks(self.kv_cache_manager)
        extras = (getattr(self, name, None) for name in ("connector", "ec_connector", "perf_metrics", "log_stats"))
        self._appends = has_full_attention(self.kv_cache_manager) and not any(extras)
        needs_more = any(getattr(self, name, None) for name in ("num_spec_tokens", "enable_return_routed_experts"))
        self._has_steady = self._appends and parallel.pipeline_parallel_size == 1 and not needs_more

    def schedule(self, *asked: Any, **more: Any) -> Any:
        """vLLM's own step without requests, to which the tokens of :meth:`_steady` requests are added."""
        steady = self._steady() if self._has_steady else None
        if steady is None:
            self._settle_all()
            return super().schedule(*asked, **more)  # type: ignore[misc]
        requests, outputs, blocks = steady
        running, self.running = self.running, []
        try:
            step = super().schedule(*asked, **more)  # type: ignore[misc]
        finally:
            self.running = running
        names = [request.request_id for request in requests]
        step.num_scheduled_tokens, step.total_num_scheduled_tokens = dict.fromkeys(names, 1), len(names)
        if not self.use_v2_model_runner:
            self.prev_step_scheduled_req_ids.update(names)
        cached = step.scheduled_cached_reqs
        cached.req_ids, cached.new_block_ids = names, blocks
        cached.num_computed_tokens = [request.num_computed_tokens for request in requests]
        cached.num_output_tokens = outputs
        placeholder = self.placeholder
        for request in requests:
            request.num_computed_tokens += 1
            request.num_in_flight_tokens += 1
            request.num_output_placeholders += placeholder
        return step

    def _steady(self) -> tuple[list[Any], list[int], list[Any]] | None:
        """The requests of a step in which each running request needs one token and nothing else, their numbers of
        output tokens, and their new blocks; None: this step is not such a one.
        """
        if len(self.requests) != len(self.running) or not 0 < len(self.running) <= self.max_num_scheduled_tokens:
            return None
        if self.pause_state.name != "UNPAUSED" or getattr(self, "aux_output_connector", None):
            return None
        size = self.kv_cache_manager.coordinator.single_type_managers[0].block_size
        responses, placeholder = self._responses, self.placeholder
        requests: list[Any] = []
        outputs: list[int] = []
        at_ends: list[tuple[int, _Response]] = []
        full = 0
        for request in self.running:
            response = responses.get(request.request_id)
            if response is None or not response.is_plain:
                return None
            computed, prompt, pending = request.num_computed_tokens, request.num_prompt_tokens, response.pending
            under_way = request.num_output_placeholders - pending * placeholder
            if len(request._all_token_ids) + pending + under_way - computed != 1:
                return None
            output = computed + 1 - prompt
            if output >= response.longest:
                if under_way > 0 and computed + 2 - under_way >= prompt + request.max_tokens:
                    continue  # its last token is under way
                return None
            place = computed % size
            if is_at_end(place, size):
                at_ends.append((len(requests), response))
                full += place == 0
            requests.append(request)
            outputs.append(output)
        if not requests or full > self.kv_cache_manager.block_pool.get_num_free_blocks():
            return None
        if not self.use_v2_model_runner and not self.prev_step_scheduled_req_ids.issuperset(
            request.request_id for request in requests
        ):
            return None
        blocks: list[Any] = [None] * len(requests)
        for number, response in at_ends:
            self._settle(response)
            blocks[number] = self.kv_cache_manager.allocate_slots(response.request, 1).get_block_ids(allow_none=True)
        return requests, outputs, blocks

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        scheduled = scheduler_output.num_scheduled_tokens
        if self._appends and is_plain(scheduler_output, model_runner_output):
            scheduler_output.num_scheduled_tokens = self._append(scheduled, model_runner_output)
        else:
            self._settle_all()
        by_client = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        scheduler_output.num_scheduled_tokens = scheduled
        for told in by_client.values():
            told.outputs = [output for output in told.outputs if self._is_due(output)]
        return by_client

    def finish_requests(self, *asked: Any, **more: Any) -> Any:
        self._settle_all()
        requests = super().finish_requests(*asked, **more)  # type: ignore[misc]
        for request in requests:
            self._responses.pop(request.request_id, None)
        return requests

    def _preempt_request(self, request: Any, *asked: Any, **more: Any) -> Any:
        self._preempted += 1
        response = self._responses.get(request.request_id)
        if response is not None:
            self._settle(response)
            response.room = 0
        return super()._preempt_request(request, *asked, **more)  # type: ignore[misc]

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
            kv_connector_stats={PREEMPTED: self._preempted, PART: self._part},
        )

    def reset_prefix_cache(self, *asked: Any, **more: Any) -> Any:
        """With requests: their ids -> their tokens so far, with those that were not reported yet; vLLM returns True."""
        self._settle_all()
        tokens = {name: request.num_output_tokens for name, request in self.requests.items()}
        before = self._preempted
        reset = super().reset_prefix_cache(*asked, **more)  # type: ignore[misc]
        self._preempted = before  # an update takes the cache of all
        return tokens if reset and tokens else reset

    def _append(self, scheduled: Mapping[str, int], step: Any) -> dict[str, int]:
        """Keep tokens that need nothing else; returns the scheduled tokens of all other requests."""
        left: dict[str, int] = {}
        log_probs, ranks = step.logprobs.logprobs[:, 0].tolist(), step.logprobs.sampled_token_ranks.tolist()
        for row, name in enumerate(step.req_ids):
            response, sampled, count = self._responses.get(name), step.sampled_token_ids[row], scheduled[name]
            if response is None or not response.room or count != 1 or len(sampled) != 1 or sampled[0] in response.stops:
                if response is not None:
                    self._settle(response)
                left[name] = count
                continue
            response.room -= 1
            response.pending += 1
            response.tokens.append(sampled[0])
            if response.reported:
                response.parts.append((step.logprobs, row, row + 1))
            else:
                response.log_probs.append(log_probs[row])
                response.ranks.append(ranks[row])
        return left

    def _settle(self, response: _Response) -> None:
        """Append tokens to the request; vLLM's own function shares its block at the next report."""
        pending, response.pending = response.pending, 0
        if pending:
            request = response.request
            request.append_output_token_ids(response.tokens[-pending:])
            request.num_in_flight_tokens -= pending
            request.num_output_placeholders -= pending * self.placeholder

    def _settle_all(self) -> None:
        for response in self._responses.values():
            self._settle(response)

    def _is_due(self, output: Any) -> bool:
        """Whether to report this output now, together with all held back ones."""
        name, log_probs = output.request_id, output.new_logprobs
        response = self._responses.get(name)
        if response is None:
            response = self._responses[name] = _Response(self.requests.get(name), self.max_model_len)
        response.tokens += output.new_token_ids
        if log_probs is not None:
            response.note(log_probs)
        if output.routed_experts is not None:
            response.experts.append(output.routed_experts)
        first = output.prefill_stats is not None
        if not (first or output.finished or output.events or len(response.tokens) >= TOKENS):
            response.make_room()
            return False
        output.new_token_ids, output.new_logprobs = response.take()
        if response.experts:
            output.routed_experts, response.experts = np.concatenate(response.experts), []
        if output.finished:
            del self._responses[name]
        else:
            response.make_room()
        return True


class GatheringScheduler(_Gathering, Scheduler):  # type: ignore[misc]
    pass


class GatheringAsyncScheduler(_Gathering, AsyncScheduler):  # type: ignore[misc]
    placeholder = 1
