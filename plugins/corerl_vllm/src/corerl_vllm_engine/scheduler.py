"""The scheduler that vLLM would choose, with less work for each token; with hundreds of requests it limits the speed.

vLLM's scheduler reports every token of every request to the calling process, with three arrays for its log-prob;
packing, unpacking and adding them up takes a fifth of the time. For each token it also asks its memory manager, which
finds that a token in the middle of a block needs nothing: half of the scheduling time. And for each token it looks at
everything that a request might need, twice: a token in the middle of a plain response is computed and appended. The
device waits while tokens are taken in before the next step is sent, which seldom needs them.
"""

import itertools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.stats import SchedulerStats

from corerl_vllm_engine.blocks import asked_at_the_ends_of_blocks, has_full_attention
from corerl_vllm_engine.cohort import Cohort
from corerl_vllm_engine.responses import Response

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
    kind = GatheringAsyncScheduler if config.scheduler_config.async_scheduling else GatheringScheduler
    return kind(**arguments)


def is_plain(step: Any, result: Any) -> bool:
    """Whether a step of the engine has nothing but sampled tokens with their log-probs."""
    return not (
        result.logprobs is None
        or len(result.req_ids) != len(step.num_scheduled_tokens)
        or result.logprobs.cu_num_generated_tokens is not None
        or step.scheduled_spec_decode_tokens
        or any(getattr(result, name, None) for name in EXTRAS)
    )


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
        self._responses: dict[str, Response] = {}
        self._turns = itertools.count()
        self._cohort: Cohort | None = None
        """of the last step; None: it was not steady"""
        self._held: tuple[Any, Any] | None = None
        """a step and its result, whose tokens are taken in once the next step is sent to the worker"""
        self._outputs: dict[int, Any] = {}
        """of held steps, that are not returned yet"""
        self._preempted, self._reported = 0, 0.0
        parallel = arguments["vllm_config"].parallel_config
        self._part = parallel.data_parallel_rank
        self.kv_cache_manager.allocate_slots = asked_at_the_ends_of_blocks(self.kv_cache_manager)
        extras = (getattr(self, name, None) for name in ("connector", "ec_connector", "perf_metrics", "log_stats"))
        self._appends = has_full_attention(self.kv_cache_manager) and not any(extras)
        needs_more = any(getattr(self, name, None) for name in ("num_spec_tokens", "enable_return_routed_experts"))
        self._has_steady = self._appends and parallel.pipeline_parallel_size == 1 and not needs_more

    def schedule(self, *asked: Any, **more: Any) -> Any:
        """vLLM's own step without requests, to which the tokens of a steady cohort are added."""
        cohort = self._steady() if self._has_steady else None
        if cohort is None:
            self._take_in()
            self._cohort = None
            self._settle_all()
            return super().schedule(*asked, **more)  # type: ignore[misc]
        blocks = self._blocks_of(cohort)
        running, self.running = self.running, []
        try:
            step = super().schedule(*asked, **more)  # type: ignore[misc]
        finally:
            self.running = running
        names = cohort.names
        step.num_scheduled_tokens, step.total_num_scheduled_tokens = dict.fromkeys(names, 1), len(names)
        if not self.use_v2_model_runner:
            self.prev_step_scheduled_req_ids.update(names)
        cached = step.scheduled_cached_reqs
        cached.req_ids, cached.new_block_ids = names, blocks
        cached.num_computed_tokens, cached.num_output_tokens = cohort.computed, cohort.outputs
        placeholder = self.placeholder
        for request in cohort.requests:
            request.num_computed_tokens += 1
            request.num_in_flight_tokens += 1
            request.num_output_placeholders += placeholder
        return step

    def get_grammar_bitmask(self, *asked: Any, **more: Any) -> Any:
        """vLLM's core asks for it between sending a step to the worker and waiting for the result of another."""
        self._take_in()
        return super().get_grammar_bitmask(*asked, **more)  # type: ignore[misc]

    def _goes_on(self) -> bool:
        """Whether the requests of the last step are those of the next, whatever the tokens under way are."""
        cohort = self._cohort
        return cohort is not None and cohort.room > 0 and len(cohort.names) == len(self.running)

    def _steady(self) -> Cohort | None:
        """The requests of a step in which each running request needs one token and nothing else; None: this step is
        not such a one.
        """
        if len(self.requests) != len(self.running) or not 0 < len(self.running) <= self.max_num_scheduled_tokens:
            return None
        if self.pause_state.name != "UNPAUSED" or getattr(self, "aux_output_connector", None):
            return None
        cohort = self._cohort
        if cohort is not None and self._goes_on():
            cohort.advance()
        else:
            cohort = self._cohort = self._found()
        if cohort is None or len(cohort.firsts()) > self._free():
            return None
        return cohort

    def _found(self) -> Cohort | None:
        """The cohort, if every request was looked at; it stays until one ends, or a step is not steady."""
        responses, placeholder = self._responses, self.placeholder
        members: list[Response] = []
        outputs: list[int] = []
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
            members.append(response)
            outputs.append(output)
        if not members:
            return None
        cohort = Cohort(members, outputs, self.kv_cache_manager.coordinator.single_type_managers[0].block_size)
        is_known = self.use_v2_model_runner or self.prev_step_scheduled_req_ids.issuperset(cohort.names)
        return cohort if is_known else None

    def _blocks_of(self, cohort: Cohort) -> list[Any]:
        """New blocks of each request; None: it gets none.

        Requests of prompts of one length reach the ends of their blocks in one step, for which the device would wait.
        So a request asks for its next block when it is its turn, up to a block early, if there is room for all.
        """
        manager = self.kv_cache_manager.coordinator.single_type_managers[0]
        size, held = manager.block_size, manager.req_to_blocks
        blocks: list[Any] = [None] * len(cohort.names)
        turns = cohort.turns() if len(cohort.names) <= self._free() else []
        lacking = [
            number for number in cohort.firsts() if len(held[cohort.names[number]]) * size <= cohort.computed[number]
        ]
        for number in dict.fromkeys([*lacking, *turns]):
            response, computed = cohort.responses[number], cohort.computed[number]
            early = min(-computed % size, response.longest - cohort.outputs[number] - 1)
            self._settle(response)
            given = self.kv_cache_manager.allocate_slots(response.request, 1, num_lookahead_tokens=early)
            blocks[number] = given.get_block_ids(allow_none=True)
        return blocks

    def _free(self) -> int:
        """Number of free blocks."""
        return int(self.kv_cache_manager.block_pool.get_num_free_blocks())

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take in the tokens of a step, or hold them until the next one is sent, which needs none of them: the device
        would wait for both. The outputs of a held step are returned by the next call, for which another step is under
        way.
        """
        self._take_in()
        self._held = scheduler_output, model_runner_output
        if not self._waits():
            self._take_in()
        outputs, self._outputs = self._outputs, {}
        return outputs

    def _waits(self) -> bool:
        """Whether the tokens of the held step may be taken in later."""
        assert self._held is not None
        cohort, (step, result) = self._cohort, self._held
        if cohort is None or not self._goes_on() or result.req_ids != cohort.names or not is_plain(step, result):
            return False
        first = cohort.responses[0]
        under_way: int = first.request.num_in_flight_tokens - first.pending
        return self.pause_state.name == "UNPAUSED" and under_way > 1

    def _take_in(self) -> None:
        """Take in the tokens of the held step, at the latest before a function of vLLM looks at the requests.

        vLLM expects no more steps under way than its own.
        """
        held, self._held = self._held, None
        for client, outputs in self._taken_in(*held).items() if held is not None else ():
            before = self._outputs.setdefault(client, outputs)
            if before is not outputs:
                before.outputs = [*before.outputs, *outputs.outputs]
                before.finished_requests = (before.finished_requests or set()) | (outputs.finished_requests or set())
                before.scheduler_stats = outputs.scheduler_stats or before.scheduler_stats

    def _taken_in(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """As vLLM's ``update_from_output``, without outputs that are not due."""
        scheduled = scheduler_output.num_scheduled_tokens
        if self._appends and is_plain(scheduler_output, model_runner_output):
            is_one_each = scheduler_output.total_num_scheduled_tokens == len(scheduled)
            scheduler_output.num_scheduled_tokens = self._append(scheduled, is_one_each, model_runner_output)
        else:
            self._settle_all()
        by_client = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        scheduler_output.num_scheduled_tokens = scheduled
        for told in by_client.values():
            told.outputs = [output for output in told.outputs if self._is_due(output)]
        return by_client

    def finish_requests(self, *asked: Any, **more: Any) -> Any:
        self._take_in()
        self._cohort = None
        self._settle_all()
        requests = super().finish_requests(*asked, **more)  # type: ignore[misc]
        for request in requests:
            self._responses.pop(request.request_id, None)
        return requests

    def _preempt_request(self, request: Any, *asked: Any, **more: Any) -> Any:
        self._preempted += 1
        self._cohort = None
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
        self._take_in()
        self._cohort = None
        self._settle_all()
        tokens = {name: request.num_output_tokens for name, request in self.requests.items()}
        before = self._preempted
        reset = super().reset_prefix_cache(*asked, **more)  # type: ignore[misc]
        self._preempted = before  # an update takes the cache of all
        return tokens if reset and tokens else reset

    def _append(self, scheduled: Mapping[str, int], is_one_each: bool, step: Any) -> dict[str, int]:
        """Keep tokens that need nothing else; returns the scheduled tokens of all other requests."""
        left: dict[str, int] = {}
        log_probs, ranks = step.logprobs.logprobs[:, 0].tolist(), step.logprobs.sampled_token_ranks.tolist()
        names, cohort = step.req_ids, self._cohort
        responses: list[Response] | list[Response | None]
        if cohort is not None and names == cohort.names:
            responses = cohort.responses
        else:
            responses = [self._responses.get(name) for name in names]
        for row, (response, sampled) in enumerate(zip(responses, step.sampled_token_ids, strict=True)):
            appends = response is not None and response.room and (is_one_each or scheduled[names[row]] == 1)
            if response is None or not appends or len(sampled) != 1 or sampled[0] in response.stops:
                if response is not None:
                    self._settle(response)
                left[names[row]] = scheduled[names[row]]
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

    def _settle(self, response: Response) -> None:
        """Append tokens to the request, whose full blocks others may then share."""
        pending, response.pending = response.pending, 0
        request = response.request
        if pending:
            request.append_output_token_ids(response.tokens[-pending:])
            request.num_in_flight_tokens -= pending
            request.num_output_placeholders -= pending * self.placeholder
        if self._has_steady:
            self.kv_cache_manager.cache_blocks(request, min(request.num_computed_tokens, request.num_tokens))

    def _settle_all(self) -> None:
        for response in self._responses.values():
            self._settle(response)

    def _is_due(self, output: Any) -> bool:
        """Whether to report this output now, together with all held back ones."""
        name, log_probs = output.request_id, output.new_logprobs
        response = self._responses.get(name)
        if response is None:
            response = Response(self.requests.get(name), self.max_model_len, next(self._turns))
            self._responses[name] = response
        response.tokens += output.new_token_ids
        if log_probs is not None:
            response.note(log_probs)
        if output.routed_experts is not None:
            response.experts.append(output.routed_experts)
        first = output.prefill_stats is not None
        if not (first or output.finished or output.events or len(response.tokens) >= response.due):
            response.make_room()
            return False
        response.due = response.due if first else response.most
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
