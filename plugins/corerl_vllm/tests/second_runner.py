"""Run by an interpreter that finds vLLM, on a GPU: its second model runner with and without corerl-vllm's steps.

    PYTHONPATH=… python plugins/corerl_vllm/tests/second_runner.py

One engine with random weights answers the same requests by vLLM's own steps, by corerl-vllm's, and by those
with its sampling; memory is so short that requests are preempted, and responses end at different steps. Some requests
are greedy, some have filters, which are left to vLLM's sampler. Prints a line of JSON.
"""

import json
import os
import random
import tempfile
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}

from transformers import Qwen2Config
from vllm import LLM, SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput

from corerl_vllm_engine import log_probs, sampling, steady

VOCABULARY, REQUESTS, BLOCKS = 50_000, 48, 160


def requests() -> tuple[list[Any], list[SamplingParams]]:
    draw = random.Random(0)
    prompts = [
        {"prompt_token_ids": [draw.randrange(1000) for _ in range(draw.randrange(1, 90))]} for _ in range(REQUESTS)
    ]
    filters = [{}] * 5 + [{"temperature": 0.0}] * 2 + [{"top_p": 0.8}]
    parameters = [
        SamplingParams(
            max_tokens=draw.choice([1, 2, 30, 31, 60, 90, 120]),
            seed=number,
            logprobs=0,
            ignore_eos=True,
            detokenize=False,
            **filters[number % len(filters)],
        )
        for number in range(REQUESTS)
    ]
    return prompts, parameters


def answers(llm: Any, prompts: list[Any], parameters: list[SamplingParams]) -> list[Any]:
    """(tokens, log-probs) of each request."""
    found = []
    for output in llm.generate(prompts, parameters, use_tqdm=False):
        tokens = list(output.outputs[0].token_ids)
        values = [each[token].logprob for each, token in zip(output.outputs[0].logprobs, tokens, strict=True)]
        found.append((tokens, values))
    return found


def started() -> LLM:
    """An engine of a small model with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
        Qwen2Config(architectures=["Qwen2ForCausalLM"], dtype="bfloat16", **sizes, **heads).save_pretrained(folder)
        return LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_num_seqs=64,
            max_num_batched_tokens=256,
            num_gpu_blocks_override=BLOCKS,
            gpu_memory_utilization=0.2,
            logprobs_mode="processed_logprobs",
            scheduler_cls="corerl_vllm_engine.scheduler.make",
        )


def engine() -> dict[str, Any]:
    llm = started()
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    log_probs.prepare(runner.sampler, keeps=False)
    prompts, parameters = requests()
    plain = [each for each in parameters if each.temperature == 1.0 and each.top_p == 1.0]
    own = answers(llm, prompts, parameters), answers(llm, prompts[: len(plain)], plain)
    made, left = [], []
    prepare, sampler = runner.prepare_inputs, runner.sampler

    def prepare_inputs(scheduler_output: Any, batch_desc: Any) -> Any:
        made.append(1)
        return prepare(scheduler_output, batch_desc)

    runner.prepare_inputs = prepare_inputs
    used = [steady.use_in(runner)]
    for _ in range(2):  # as between two generations
        runner.execute_model(SchedulerOutput.make_empty())
    steps: list[int] = []
    execute = runner.execute_model
    runner.execute_model = lambda *given, **more: steps.append(1) or execute(*given, **more)
    kept = answers(llm, prompts, parameters), answers(llm, prompts[: len(plain)], plain)
    counts = {"steps": len(steps), "made anew": len(made)}
    used.append(sampling.use_in(runner))
    original = type(sampler).__call__
    type(sampler).__call__ = lambda self, *given: left.append(1) or original(self, *given)
    drawn = [answers(llm, prompts, parameters) for _ in range(2)]
    counts["left to vLLM's sampler"] = len(left)
    left.clear()
    answers(llm, prompts[: len(plain)], plain)
    greedy = [number for number, each in enumerate(parameters) if each.temperature == 0.0]
    return {
        "used": used,
        "same": [a[0] == b[0] for pair in zip(own, kept, strict=True) for a, b in zip(*pair, strict=True)],
        "difference": apart(own[0] + own[1], kept[0] + kept[1]),
        "same greedy tokens": [own[0][number][0] == drawn[0][number][0] for number in greedy],
        "difference of greedy ones": apart(*([found[number] for number in greedy] for found in (own[0], drawn[0]))),
        "same tokens again": [a[0] == b[0] for a, b in zip(*drawn, strict=True)],
        **counts,
        "left to vLLM's sampler, plain requests": len(left),
        "preempted": llm.llm_engine.engine_core.engine_core.scheduler._preempted,
    }


def apart(first: list[Any], second: list[Any]) -> float:
    """The largest difference of log-probs."""
    return max(abs(a - b) for x, y in zip(first, second, strict=True) for a, b in zip(x[1], y[1], strict=True))


if __name__ == "__main__":
    print(json.dumps(engine()))
