"""Less work of the processor in steps in which the requests of the step before need one token each.

vLLM's second model runner makes the inputs of every step anew: it sorts the names of requests, looks them up, copies
their places to the device, and writes all parameters of sampling. With hundreds of requests of a small model that takes
as long as the device computes. Requests seldom come or go, so a step keeps all but lengths and positions.
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu import input_batch

FUNCTIONS = {
    "prepare_pos_seq_lens": ("idx_mapping", "query_start_loc", "num_computed_tokens", "pos", "seq_lens"),
    "combine_sampled_and_draft_tokens": (
        *("input_ids", "idx_mapping", "last_sampled_tokens", "query_start_loc", "seq_lens", "prefill_len"),
        *("draft_tokens", "cu_num_logits", "num_logits", "num_new_sampled_tokens"),
    ),
}
"""functions of vLLM that fill the inputs of a step, and their parameters in the releases that were tested"""

METHODS = {
    "add_requests": ("scheduler_output",),
    "update_requests": ("scheduler_output",),
    "prepare_inputs": ("scheduler_output", "batch_desc"),
}
"""of the runner, likewise"""

SEVERAL = ("use_pp", "use_dcp", "pcp_manager", "lora_config", "num_speculative_steps", "supports_mm_inputs")
"""attributes of a runner whose steps have more inputs"""


def use_in(runner: Any) -> bool:
    """Change vLLM's second model runner; False: it has another structure, or its steps have more inputs."""
    if not (_has(input_batch, FUNCTIONS) and _has(runner, METHODS)):
        return False
    state = runner.model_state
    several = any(getattr(runner, name) for name in SEVERAL) or runner.dp_size > 1 or runner.is_encoder_decoder
    if several or type(state).__name__ != "DefaultModelState" or state.rope_state is not None:
        return False
    Steps(runner)
    return True


def _has(owner: Any, functions: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether these functions of a module or an object have these parameters."""
    return all(
        (function := getattr(owner, name, None)) is not None
        and tuple(inspect.signature(function).parameters) == parameters
        for name, parameters in functions.items()
    )


class Steps:
    """The last step of a runner: what the next one can keep of it."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._add, self._update, self._prepare = runner.add_requests, runner.update_requests, runner.prepare_inputs
        self._names: list[str] | None = None
        """the requests, in the scheduler's order; None: of none is a step known"""
        self._rows: Any = None
        """(requests,), their places in the runner"""
        self._is_same = False
        """whether the step that is made has the requests of the last one"""
        self._batch: Any = None
        """inputs of the last step; None: it had prompts, too"""
        self._shape: Any = None
        dummy = runner._dummy_run

        def run_dummy(*arguments: Any, **more: Any) -> Any:
            self._forget()  # it writes to the same buffers
            return dummy(*arguments, **more)

        runner.add_requests, runner.update_requests = self.add_requests, self.update_requests
        runner.prepare_inputs, runner._dummy_run = self.prepare_inputs, run_dummy

    def _forget(self) -> None:
        self._names, self._batch, self._is_same = None, None, False

    def add_requests(self, step: Any) -> None:
        """vLLM's own, which also writes the parameters of sampling: they change with new requests."""
        if step.scheduled_new_reqs:
            self._add(step)

    def update_requests(self, step: Any) -> None:
        """Lengths and new blocks of requests that are known."""
        cached, runner = step.scheduled_cached_reqs, self._runner
        states = runner.req_states
        others = step.scheduled_new_reqs or step.new_block_ids_to_zero or step.kv_cache_block_copies
        self._is_same = not others and cached.req_ids == self._names
        if not self._is_same:
            self._forget()
            self._update(step)
            if not others and 0 < len(cached.req_ids) == step.total_num_scheduled_tokens:
                self._names = cached.req_ids
                self._rows = np.array([states.req_id_to_index[name] for name in cached.req_ids])
            return
        states.num_computed_tokens_np[self._rows] = cached.num_computed_tokens
        for place, blocks in enumerate(cached.new_block_ids):
            if blocks is not None:
                runner.block_tables.append_block_ids(int(self._rows[place]), blocks, overwrite=False)
        np.minimum(states.num_computed_tokens_np, states.prefill_len.np, out=states.num_computed_prefill_tokens)

    def prepare_inputs(self, step: Any, shape: Any) -> Any:
        """Those of the last step with other lengths, positions and tokens."""
        runner, batch = self._runner, self._batch
        is_one_each = self._names is not None and step.total_num_scheduled_tokens == len(self._names)
        if not (self._is_same and is_one_each and batch is not None and shape == self._shape):
            made = self._prepare(step, shape)
            keeps = is_one_each and not made.is_prefilling_np.any() and not made.num_draft_tokens
            self._batch, self._shape = (made, shape) if keeps else (None, None)
            return made
        buffers, states = runner.input_buffers, runner.req_states
        input_batch.prepare_pos_seq_lens(
            batch.idx_mapping,
            batch.query_start_loc,
            states.num_computed_tokens.gpu,
            buffers.positions,
            buffers.seq_lens,
        )
        indices = input_batch.combine_sampled_and_draft_tokens(
            buffers.input_ids,
            batch.idx_mapping,
            states.last_sampled_tokens,
            batch.query_start_loc,
            batch.seq_lens,
            states.prefill_len.gpu,
            states.draft_tokens,
            batch.cu_num_logits,
            batch.num_reqs,
            runner.model_state.num_new_sampled_tokens_per_step,
        )
        computed = states.num_computed_tokens_np[batch.idx_mapping_np]
        longest = np.zeros(batch.num_reqs_after_padding, dtype=np.int32)
        np.add(computed, 1, out=longest[: batch.num_reqs])
        self._batch = replace(
            batch,
            logits_indices=indices,
            num_computed_tokens_np=computed,
            seq_lens_cpu_upper_bound=torch.from_numpy(longest),
            has_structured_output_reqs=step.has_structured_output_requests,
        )
        return self._batch
