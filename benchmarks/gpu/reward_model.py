"""Scores of a reward model behind vLLM or SGLang beside those of transformers, and its responses per second.

    python benchmarks/gpu/reward_model.py vllm --python .venv-vllm/bin/python --gpu 0 [--pool]

A random Qwen2 model for sequence classification. The largest difference of a score from transformers' in float32 says
whether the engine gives the model's own output, without activation and bias; twice that of transformers in bf16 is
allowed. About 60 s: the engine's start. ``--pool``: the engine is in a pool of runtime ``ray`` (one GPU, of a cluster
that is started here), 15 s longer. ``--device cpu``: a tiny model and vLLM's CPU build.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.reward_managers import RewardRequest
from corerl_rewards.model import ModelRewardManager
from corerl_rewards.options import ModelOptions
from corerl_testing.tiny_model import END, PAD, VOCABULARY, tiny_model

EXACT = 1e-3
"""of a score whose deviation over responses is about 1"""


def model_folder(folder: Path, device: str) -> Path:
    """A random model with one output, whose scores differ between responses."""
    torch.manual_seed(0)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes: dict[str, Any] = dict(zip(names, (1024, 2816, 12, 16) if device == "cuda" else (64, 32, 2, 2), strict=True))
    sizes["num_labels"] = 1
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        num_key_value_heads=2 if device == "cuda" else 1,
        initializer_range=0.05 if device == "cuda" else 0.3,
        pad_token_id=PAD,
        eos_token_id=END,
        **sizes,
    )
    model: Any = Qwen2ForSequenceClassification(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model()).save_pretrained(folder)
    return folder


def scored(manager: ModelRewardManager, requests: list[RewardRequest]) -> tuple[list[float], float]:
    """Scores, and seconds of the second call."""
    manager.score(requests[:16])
    began = time.perf_counter()
    results = manager.score(requests)
    seconds = time.perf_counter() - began
    manager.close()
    for result in results:
        if result.score is None:
            raise SystemExit(f"a response has no score: {result.error}")
    return [float(result.score or 0.0) for result in results], seconds


@contextmanager
def pool(name: str | None, device: str) -> Iterator[None]:
    """A cluster with a worker without a GPU, and a pool of one GPU; on the CPU it is one in Ray's count alone."""
    if name is None:
        yield
        return
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray

    from corerl_ray.launch import launch
    from corerl_ray.options import RayOptions

    ray.init(
        "local", num_cpus=4, num_gpus=None if device == "cuda" else 1, logging_level=logging.ERROR, log_to_driver=False
    )
    runtime = launch(RuntimeConfig(name="ray"), options=RayOptions(workers=1, pools={name: 1}))
    try:
        yield
    finally:
        runtime.close()
        ray.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("--python", required=True, help="interpreter of the engine's environment")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--gpu", type=int, default=0, help="the engine's GPU; transformers are on the first")
    parser.add_argument("--pool", action="store_true", help="the engine is in a pool of runtime ray, not on --gpu")
    parser.add_argument("--responses", type=int, default=256)
    arguments = parser.parse_args()
    count = arguments.responses if arguments.device == "cuda" else 16
    words = ["the", "answer", "of", "this", "sum", "is", "forty", "two", "because", "six", "times", "seven"]
    requests = [
        RewardRequest(
            " ".join(words[row % 7 :] * (1 + row % 9)), "", "s", prompt=[{"role": "user", "content": "6 · 7?"}]
        )
        for row in range(count)
    ]
    table = Table("scores by", "responses/s", "largest difference", "deviation of scores")
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {"path": str(model_folder(Path(folder), arguments.device)), "max_length": 1024}
        dtype: Literal["bf16", "fp32"] = "bf16" if arguments.device == "cuda" else "fp32"
        gpus = [arguments.gpu] if arguments.device == "cuda" and not arguments.pool else []
        name = "classifier" if arguments.pool else None
        ways = {
            "transformers, fp32": ModelOptions(device=arguments.device, dtype="fp32", **given),
            f"transformers, {dtype}": ModelOptions(device=arguments.device, dtype=dtype, **given),
            f"{arguments.engine}, {dtype}": ModelOptions(
                engine=arguments.engine, python=arguments.python, gpus=gpus, pool=name, dtype=dtype, **given
            ),
        }
        exact: list[float] = []
        worst: list[float] = []
        with pool(name, arguments.device):
            for way, options in ways.items():
                scores, seconds = scored(
                    ModelRewardManager({}, num_workers=1, timeout=300.0, options=options), requests
                )
                exact = exact or scores
                spread = float(torch.tensor(exact).std())
                worst.append(max(abs(a - b) for a, b in zip(exact, scores, strict=True)) / spread)
                table.add_row(way, f"{count / seconds:.0f}", f"{worst[-1]:.2g} deviations", f"{spread:.3f}")
    Console(width=120).print(table)
    return int(worst[-1] > max(EXACT, 2 * worst[1]))


if __name__ == "__main__":
    sys.exit(main())
