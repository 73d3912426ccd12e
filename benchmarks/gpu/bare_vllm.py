"""Tokens a second of vLLM alone: ``python bare_vllm.py MODEL REQUESTS.json`` prints a line of JSON.

The requests are those that a training step made (forced_lengths.py). ``first`` is of the first time that the engine has
them, the others are of later times.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams, TokensPrompt


def main(model: str, requests: list[dict[str, Any]]) -> None:
    engine = LLM(
        model=model,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        gpu_memory_utilization=0.5,
        disable_log_stats=True,
        max_model_len=max(len(each["prompt_ids"]) + each["max_tokens"] for each in requests),
    )
    prompts = [TokensPrompt(prompt_token_ids=each["prompt_ids"]) for each in requests]
    results = {}
    for name, seeded in (("first tokens/s", False), ("tokens/s", False), ("seeded tokens/s", True)):
        params = [
            SamplingParams(
                n=each["n"],
                max_tokens=each["max_tokens"],
                temperature=each["temperature"],
                ignore_eos=True,
                detokenize=False,
                logprobs=0,
                seed=each["seed"] % 2**31 if seeded else None,
            )
            for each in requests
        ]
        engine.reset_prefix_cache()
        start = time.perf_counter()
        outputs = engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        results[name] = sum(len(each.token_ids) for output in outputs for each in output.outputs) / seconds
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))
