"""Run by an interpreter that finds vLLM: random steps of a runner with corerl-vllm's steps, beside one without them.

    PYTHONPATH=plugins/corerl_vllm/src .venv-vllm-cpu/bin/python plugins/corerl_vllm/tests/steady_schedules.py 0 50

vLLM's second model runner needs a GPU (see second_runner.py). Here a runner has its arrays and calls of its methods in
its order, on the CPU, and makes each step's inputs anew; vLLM's two kernels are replaced by torch. Requests arrive in
prompts of one or two steps, get blocks, end, are preempted and come back; some steps have none. Prints the number of
steps, and of those whose inputs were made anew; fails at the first step whose inputs or arrays differ.
"""

import inspect
import random
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.worker.gpu import input_batch

from corerl_vllm_engine import steady

MOST = 12


@dataclass
class Batch:
    """The inputs of a step that corerl-vllm reads or replaces, by vLLM's names."""

    idx_mapping: Any
    idx_mapping_np: Any
    query_start_loc: Any
    seq_lens: Any
    cu_num_logits: Any
    logits_indices: Any
    num_reqs: int
    num_reqs_after_padding: int
    num_draft_tokens: int
    is_prefilling_np: Any
    num_computed_tokens_np: Any
    seq_lens_cpu_upper_bound: Any
    has_structured_output_reqs: bool


def positions_and_lengths(rows: Any, starts: Any, computed: Any, pos: Any, lengths: Any) -> None:
    lengths.zero_()
    for number, row in enumerate(rows.tolist()):
        first, last = starts[number : number + 2].tolist()
        pos[first:last] = computed[row] + torch.arange(last - first)
        lengths[number] = computed[row] + last - first


def last_tokens(ids: Any, rows: Any, last: Any, starts: Any, lengths: Any, prefilled: Any, *more: Any) -> Any:
    for number, row in enumerate(rows.tolist()):
        if lengths[number] > prefilled[row]:
            ids[starts[number + 1] - 1] = last[row, 0]
    return starts[1 : len(rows) + 1].long() - 1


def replaced(name: str, function: Any) -> Any:
    """The function with the parameters of vLLM's, which corerl-vllm looks at."""
    function.__signature__ = inspect.signature(getattr(input_batch, name))
    return function


class DefaultModelState:
    rope_state = None
    num_new_sampled_tokens_per_step = 1


class Runner:
    """Arrays and methods of vLLM's runner."""

    use_pp = use_dcp = pcp_manager = lora_config = supports_mm_inputs = is_encoder_decoder = None
    num_speculative_steps, dp_size = 0, 1

    def __init__(self) -> None:
        self.model_state = DefaultModelState()
        self.free, self.blocks, self.made, self.parameters = list(range(MOST)), [], 0, 0
        prefilled = np.zeros(MOST, np.int32)
        self.req_states = SimpleNamespace(
            req_id_to_index={},
            num_computed_tokens_np=np.zeros(MOST, np.int32),
            num_computed_prefill_tokens=np.zeros(MOST, np.int32),
            num_computed_tokens=SimpleNamespace(gpu=torch.zeros(MOST, dtype=torch.int32)),
            prefill_len=SimpleNamespace(np=prefilled, gpu=torch.from_numpy(prefilled)),
            last_sampled_tokens=torch.zeros(MOST, 1, dtype=torch.int64),
            draft_tokens=torch.zeros(MOST, 0, dtype=torch.int64),
        )
        self.input_buffers = SimpleNamespace(
            input_ids=torch.zeros(64, dtype=torch.int32),
            positions=torch.zeros(64, dtype=torch.int64),
            query_start_loc=torch.zeros(MOST + 1, dtype=torch.int32),
            seq_lens=torch.zeros(MOST, dtype=torch.int32),
        )
        self.block_tables = SimpleNamespace(append_block_ids=lambda *given, **more: self.blocks.append((*given, more)))

    def _dummy_run(self) -> None:
        pass

    def finish_requests(self, step: Any) -> None:
        for name in step.finished_req_ids | (step.preempted_req_ids or set()):
            self.free.append(self.req_states.req_id_to_index.pop(name))

    def add_requests(self, scheduler_output: Any) -> None:
        states = self.req_states
        for new in scheduler_output.scheduled_new_reqs:
            row = states.req_id_to_index[new.req_id] = self.free.pop()
            states.prefill_len.np[row] = len(new.prefill_token_ids)
            states.num_computed_tokens_np[row] = states.num_computed_prefill_tokens[row] = new.num_computed_tokens
            states.num_computed_tokens.gpu[row] = new.num_computed_tokens
            self.block_tables.append_block_ids(row, new.block_ids, overwrite=True)
            self.parameters += 1

    def update_requests(self, scheduler_output: Any) -> None:
        cached, states = scheduler_output.scheduled_cached_reqs, self.req_states
        for name, computed, blocks in zip(
            cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        ):
            row = states.req_id_to_index[name]
            states.num_computed_tokens_np[row] = computed
            if blocks is not None:
                self.block_tables.append_block_ids(row, blocks, overwrite=False)
        np.minimum(states.num_computed_tokens_np, states.prefill_len.np, out=states.num_computed_prefill_tokens)

    def prepare_inputs(self, scheduler_output: Any, batch_desc: int) -> Batch:
        self.made += 1
        step, shape = scheduler_output, batch_desc
        states, buffers = self.req_states, self.input_buffers
        counts = step.num_scheduled_tokens
        names = sorted(counts, key=lambda name: (counts[name] != 1, counts[name]))
        rows = np.array([states.req_id_to_index[name] for name in names], np.int32)
        sizes = np.array([counts[name] for name in names], np.int32)
        buffers.query_start_loc[:] = int(sizes.sum())
        buffers.query_start_loc[: len(names) + 1] = torch.tensor([0, *np.cumsum(sizes).tolist()])
        device_rows, starts, lengths = torch.from_numpy(rows), buffers.query_start_loc, buffers.seq_lens[:shape]
        computed = states.num_computed_tokens.gpu
        input_batch.prepare_pos_seq_lens(device_rows, starts, computed, buffers.positions, buffers.seq_lens)
        indices = input_batch.combine_sampled_and_draft_tokens(
            *(buffers.input_ids, device_rows, states.last_sampled_tokens, starts, lengths, states.prefill_len.gpu),
            *(states.draft_tokens, torch.arange(len(names) + 1), len(names), 1),
        )
        longest = np.zeros(shape, np.int32)
        longest[: len(names)] = states.num_computed_tokens_np[rows] + sizes
        return Batch(
            device_rows,
            rows,
            starts[: shape + 1],
            lengths,
            torch.arange(len(names) + 1),
            indices,
            len(names),
            shape,
            0,
            states.num_computed_prefill_tokens[rows] < states.prefill_len.np[rows],
            states.num_computed_tokens_np[rows],
            torch.from_numpy(longest),
            step.has_structured_output_requests,
        )

    def execute(self, step: Any, shape: int, sampled: int) -> Batch | None:
        """A step by vLLM's order of calls; every request samples a token."""
        self.finish_requests(step)
        self.add_requests(step)
        self.update_requests(step)
        if not step.total_num_scheduled_tokens:
            return None
        batch = self.prepare_inputs(step, shape)
        states = self.req_states
        sizes = batch.query_start_loc[1 : batch.num_reqs + 1] - batch.query_start_loc[: batch.num_reqs]
        states.num_computed_tokens.gpu[batch.idx_mapping.long()] += sizes
        states.last_sampled_tokens[batch.idx_mapping.long(), 0] = sampled + torch.arange(batch.num_reqs)
        return batch


class Requests:
    """A scheduler that draws what happens."""

    def __init__(self, seed: int) -> None:
        self.draw, self.count = random.Random(seed), 0
        self.running: dict[str, list[int]] = {}
        """name -> [tokens computed, length of the prompt]"""
        self.gone: list[list[int]] = []

    def step(self) -> SchedulerOutput:
        draw, step = self.draw, SchedulerOutput.make_empty()
        step.preempted_req_ids = set()
        for name in list(self.running):
            if draw.random() < 0.02:
                (step.finished_req_ids if draw.random() < 0.6 else step.preempted_req_ids).add(name)
                self.gone.append(self.running.pop(name))
        if draw.random() < 0.1:
            return step
        cached = step.scheduled_cached_reqs
        for name, (computed, prompt) in self.running.items():
            size = min(4, prompt - computed) if computed < prompt else 1
            cached.req_ids.append(name)
            cached.num_computed_tokens.append(computed)
            cached.new_block_ids.append(([computed],) if draw.random() < 0.1 else None)
            step.num_scheduled_tokens[name] = size
            self.running[name][0] += size
        while len(self.running) < MOST and draw.random() < (0.7 if not self.running else 0.1):
            length = self.gone.pop()[0] if self.gone and draw.random() < 0.3 else draw.randrange(1, 9)
            name, size, self.count = f"r{self.count}", min(4, max(length, 1)), self.count + 1
            tokens = [0] * max(length, 1)
            new = NewRequestData(name, tokens, [], None, None, ([0],), 0, None, prefill_token_ids=tokens)
            step.scheduled_new_reqs.append(new)
            step.num_scheduled_tokens[name] = size
            self.running[name] = [size, len(tokens)]
        step.total_num_scheduled_tokens = sum(step.num_scheduled_tokens.values())
        return step


def arrays(runner: Runner, batch: Batch | None) -> dict[str, Any]:
    states, buffers = runner.req_states, runner.input_buffers
    found = {name: torch.as_tensor(value).tolist() for name, value in vars(batch).items()} if batch else {}
    used = int(batch.query_start_loc[batch.num_reqs]) if batch else 0
    return found | {
        "blocks": runner.blocks[-40:],
        "computed": states.num_computed_tokens_np.tolist(),
        "of prompts": states.num_computed_prefill_tokens.tolist(),
        "on the device": states.num_computed_tokens.gpu.tolist(),
        "ids": buffers.input_ids[:used].tolist(),
        "positions": buffers.positions[:used].tolist(),
        "lengths": buffers.seq_lens.tolist(),
        "parameters": runner.parameters,
    }


def main(first: int, last: int) -> None:
    input_batch.prepare_pos_seq_lens = replaced("prepare_pos_seq_lens", positions_and_lengths)
    input_batch.combine_sampled_and_draft_tokens = replaced("combine_sampled_and_draft_tokens", last_tokens)
    steps = anew = 0
    for seed in range(first, last):
        own, changed = Runner(), Runner()
        assert steady.use_in(changed)
        requests = Requests(seed)
        for number in range(150):
            step = requests.step()
            shape = requests.draw.choice([MOST, *[-(-len(step.num_scheduled_tokens) // 4) * 4] * 9])
            theirs = arrays(own, own.execute(step, shape, 1000 * number))
            ours = arrays(changed, changed.execute(step, shape, 1000 * number))
            assert ours == theirs, (seed, number, [name for name in theirs if ours.get(name) != theirs[name]])
        steps, anew = steps + own.made, anew + changed.made
    print(f"{steps} steps, {anew} anew")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
