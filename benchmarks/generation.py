"""Tokens per second of the rollout backend ``hf`` beside transformers' own ``generate``, same model, one run.

Both sample at temperature 1 from a random Qwen2 of the given size, in turns, ``--repeats`` times each. ``forced``:
every response has ``--new-tokens`` tokens. ``natural``: some token ids end a response, so that the mean length is about
a third of that; only tokens up to the end of a response are counted. The backend also returns log-probs, ``generate``
does not.

    python benchmarks/generation.py --shapes 64x1 8x8 --hidden-size 128 --layers 4
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions

PAD = 0


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        _random_model(arguments).save_pretrained(folder)
        dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(arguments.device).eval()
        backend = HfBackend(ModelConfig(path=folder), RolloutConfig(), device=arguments.device, options=HfOptions())
        for shape in arguments.shapes:
            for ending in ("forced", "natural"):
                results.append(_compare(model, backend, shape, ending, arguments))
        backend.close()
    _print(results, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["64x1", "8x8"], help="prompts x samples of each")
    parser.add_argument("--prompt-length", nargs=2, type=int, default=[16, 48], help="shortest and longest prompt")
    parser.add_argument("--new-tokens", type=int, default=64, help="of the longest response")
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4, help="half as many key and value heads")
    parser.add_argument("--vocab-size", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of torch; more are unsteady where cores are shared")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser.parse_args()


def _random_model(arguments: argparse.Namespace) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=arguments.vocab_size,
        hidden_size=arguments.hidden_size,
        intermediate_size=4 * arguments.hidden_size,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        num_key_value_heads=max(1, arguments.heads // 2),
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=None,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def _compare(model: Any, backend: HfBackend, shape: str, ending: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of both, each the median of several runs."""
    prompts, n = (int(number) for number in shape.split("x"))
    generator = torch.Generator().manual_seed(0)
    shortest, longest = arguments.prompt_length
    lengths = torch.randint(shortest, longest + 1, (prompts,), generator=generator).tolist()
    ids = [torch.randint(1, arguments.vocab_size, (length,), generator=generator).tolist() for length in lengths]
    stops = list(range(1, 1 + round(3 * arguments.vocab_size / arguments.new_tokens))) if ending == "natural" else []
    sides: dict[str, Callable[[int], int]] = {
        "generate": lambda seed: _transformers(model, ids, n, stops, arguments.new_tokens, seed),
        "hf": lambda seed: _backend(backend, ids, n, stops, arguments.new_tokens, seed),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(-1, arguments.repeats):
        for name, run in sides.items():
            started = time.perf_counter()
            tokens = run(repeat + 1)
            if repeat >= 0:
                rates[name].append(tokens / (time.perf_counter() - started))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {"shape": shape, "ending": ending, **medians, "ratio": medians["hf"] / medians["generate"], "all": rates}


def _transformers(model: Any, prompts: list[list[int]], n: int, stops: list[int], new_tokens: int, seed: int) -> int:
    torch.manual_seed(seed)
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        num_return_sequences=n,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=new_tokens,
        eos_token_id=stops or None,
        pad_token_id=PAD,
    )
    responses = output[:, width:].cpu()
    ended = torch.isin(responses, torch.tensor(stops, dtype=responses.dtype))
    before = ended.cumsum(dim=1) - ended.long() == 0
    return int(before.sum())


def _backend(backend: HfBackend, prompts: list[list[int]], n: int, stops: list[int], new_tokens: int, seed: int) -> int:
    requests = [
        GenerationRequest(
            str(number), prompt, SamplingParams(max_tokens=new_tokens, n=n, stop_token_ids=tuple(stops), seed=seed)
        )
        for number, prompt in enumerate(prompts)
    ]
    completions = asyncio.run(backend.generate(requests))
    return sum(len(completion.token_ids) for samples in completions for completion in samples)


def _print(results: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    size = f"hidden {arguments.hidden_size}, {arguments.layers} layers, vocabulary {arguments.vocab_size}"
    table = Table("prompts x samples", "ending", "generate, tokens/s", "hf, tokens/s", "ratio", title=size)
    for each in results:
        table.add_row(
            each["shape"], each["ending"], f"{each['generate']:,.0f}", f"{each['hf']:,.0f}", f"{each['ratio']:.2f}"
        )
    Console().print(table)
    print(json.dumps({**vars(arguments), "results": results}))


if __name__ == "__main__":
    main()
