"""``trainer.bitwise`` on one GPU: log-probs of vLLM beside those of fsdp, before and after updates, and what it costs.

    python benchmarks/gpu/equal_bits.py tokens --model /tmp/material/qwen2.5-1.5b --python /tmp/vllm/python
    python benchmarks/gpu/equal_bits.py runs --model /tmp/material/qwen2.5-0.5b --python /tmp/vllm/python \\
        --data /tmp/material/gsm8k/train.parquet

``tokens``: the engine gets the trainer's random weights in bf16 and generates ``--prompts`` × ``--n`` responses of
``--tokens`` tokens; then ``--updates`` updates, and again. Prints the largest difference of log-probs (whole, and in
batches of another composition), and seconds of generation, forward pass and update. ``--plain`` does the same without
the option. ``runs``: trains twice, and once with a kill after the second step, side by side on the GPU, and compares
the metrics.
Ends with exit code 1 if a difference is not 0.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from corerl.contracts.config import ModelConfig, OptimConfig, RolloutConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.plugins import load_plugins
from corerl.telemetry.metrics_log import read_metrics
from corerl_torch.supervised import SupervisedObjective

BY_CLOCK = (
    *("timing_s/", "timing_per_token_ms/", "perf/", "throughput/", "memory/", "engine/", "agent/seconds"),
    *("rollout/kv_cache_usage/", "rollout/requests/"),
)
"""prefixes of metrics that no two runs share: times, and the load of an engine at the moments of its reports"""


def requests_of(asked: argparse.Namespace, seed: int) -> list[GenerationRequest]:
    """Random prompts of many lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(asked.prompt_tokens // 4, asked.prompt_tokens + 1, (asked.prompts,), generator=generator)
    return [
        GenerationRequest(
            f"{seed}-{number}",
            torch.randint(10, asked.vocabulary, (int(length),), generator=generator).tolist(),
            SamplingParams(max_tokens=asked.tokens, n=asked.n, ignore_eos=True, seed=number),
        )
        for number, length in enumerate(lengths)
    ]


def alone(backend: Any, asked: argparse.Namespace, batch: Experience, seed: int) -> float:
    """Largest difference of the engine's own log-probs, of requests that are generated one after the other."""
    largest, log_probs = 0.0, batch.rollout_log_probs
    assert log_probs is not None
    for number, request in enumerate(requests_of(asked, seed)[: asked.alone]):
        [samples] = asyncio.run(backend.generate([dataclasses.replace(request, request_id=f"alone-{number}")]))
        for place, own in enumerate(samples):
            together = log_probs[number * asked.n + place, : len(own.log_probs)]
            largest = max(largest, float((together - torch.tensor(own.log_probs)).abs().max()))
    return largest


def generate(backend: Any, asked: argparse.Namespace, seed: int) -> tuple[Experience, float]:
    """The rows, with the engine's log-probs, and the seconds."""
    requests = requests_of(asked, seed)
    began = time.perf_counter()
    outputs = asyncio.run(backend.generate(requests))
    seconds = time.perf_counter() - began
    rows = [(each.prompt_ids, own) for each, samples in zip(requests, outputs, strict=True) for own in samples]
    batch = collate(
        [list(prompt) for prompt, _ in rows],
        [list(own.token_ids) for _, own in rows],
        list(range(len(rows))),
        log_probs=[list(own.log_probs) for _, own in rows],
    )
    mask = batch.response_mask
    return dataclasses.replace(batch, loss_weights=mask / mask.sum()), seconds


def difference(one: torch.Tensor, other: torch.Tensor, batch: Experience) -> torch.Tensor:
    """Differences of log-probs of response tokens."""
    width = batch.response_mask.shape[1]
    return (one[:, :width] - other[:, :width])[batch.response_mask].abs().double()


def tokens(asked: argparse.Namespace) -> bool:
    """Whether all differences are 0."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu, exact = device == "cuda", not asked.plain
    model = ModelConfig(path=str(asked.model), load_format="dummy", dtype="bf16" if on_gpu else "fp32")
    registries = load_plugins().registries
    cut = MicroBatching(max_tokens=asked.micro_batch)
    spec = StrategySpec(model, device, cut, OptimConfig(lr=1e-5), total_steps=100, temperature=1.0)
    strategy: Any = registries.training_strategies.select(
        {"name": "fsdp", "bitwise": exact, "share_prefixes": False}
    ).load()(spec)
    options = {"name": "vllm", "python": asked.python, "load_format": "dummy", "bitwise": exact}
    options |= {"gpu_memory_utilization": asked.engine_share, "max_model_len": asked.prompt_tokens + asked.tokens}
    backend: Any = registries.rollout_backends.select(options).load()(model, RolloutConfig(), device=device)
    largest = 0.0
    batch: Experience | None = None
    try:
        backend.started()
        for version, updates in enumerate((0, asked.updates)):
            chosen = torch.randperm(asked.prompts * asked.n)[: asked.update_rows]
            began = time.perf_counter()
            for _ in range(updates):
                assert batch is not None
                part = batch.select(chosen)
                weights = part.response_mask / part.response_mask.sum()
                strategy.update(dataclasses.replace(part, loss_weights=weights), SupervisedObjective())
            seconds = (time.perf_counter() - began) / max(1, updates)
            backend.update_weights(strategy.weights(torch.bfloat16 if on_gpu else None), version)
            batch, generating = generate(backend, asked, version)
            began = time.perf_counter()
            whole = strategy.forward(batch, ["log_probs"]).log_probs
            forward = time.perf_counter() - began
            assert batch.rollout_log_probs is not None
            apart = difference(whole, batch.rollout_log_probs, batch)
            some = torch.randperm(len(batch))[: max(1, len(batch) // 3)]
            part = batch.select(some)
            others = difference(strategy.forward(part, ["log_probs"]).log_probs, whole[some], part)
            by_itself = alone(backend, asked, batch, version)
            largest = max(largest, float(apart.max()), float(others.max()), by_itself)
            print(
                json.dumps(
                    {
                        "bitwise": exact,
                        "updates before": updates,
                        "tokens": int(batch.response_mask.sum()),
                        "largest difference": float(apart.max()),
                        "mean": float(apart.mean()),
                        "trainer in other batches": float(others.max()),
                        "engine one by one": by_itself,
                        "seconds of an update": round(seconds, 3),
                        "rows of an update": asked.update_rows,
                        "forward": round(forward, 2),
                        "generation": round(generating, 2),
                        "ms a decode step": round(1000 * generating / asked.tokens, 2),
                        "device": torch.cuda.get_device_name() if on_gpu else device,
                    }
                ),
                flush=True,
            )
    finally:
        backend.close()
    return asked.plain or largest == 0


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """Metrics of the newest run, without times."""
    run = max((folder / "bitwise").iterdir())
    return [
        {name: value for name, value in record.items() if not name.startswith(BY_CLOCK) and "seconds" not in name}
        for record in read_metrics(run / "metrics.jsonl")
    ]


def runs(asked: argparse.Namespace) -> bool:
    """Whether the metrics of three runs are equal. The runs share the GPU, each with its own engine."""
    names = ("first", "second", "killed")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(names)) as pool:
        config = Path(folder) / "config.yaml"
        config.write_text("{}\n")
        running = [pool.submit(_train, asked, config, Path(folder) / name, kill=name == "killed") for name in names]
        found = [each.result() for each in running]
    differing = sorted(
        {
            name
            for other in found[1:]
            for one, two in zip(found[0], other, strict=True)
            for name in one.keys() | two.keys()
            if one.get(name) != two.get(name)
        }
    )
    largest = [record.get("training/rollout_probs_diff_max") for record in found[0]]
    print(json.dumps({"metrics that differ": differing, "compared": len(found[0][-1]), "differences": largest}))
    return not differing and not any(largest)


def _train(asked: argparse.Namespace, config: Path, folder: Path, *, kill: bool) -> list[dict[str, Any]]:
    command = [
        *(sys.executable, "-m", "corerl", "train", str(config), f"model.path={asked.model}"),
        "model.load_format=dummy",
        *(f"data.train_files=[{asked.data}]", "data.train_batch_size=16", "data.max_prompt_length=256"),
        *(f"data.max_response_length={asked.tokens}", "algorithm.adv_estimator=grpo", "rollout.n=4"),
        *("actor.device=auto", "actor.ppo_mini_batch_size=8", "actor.optim.lr=1e-5", "actor.strategy=fsdp"),
        *("rollout.name=vllm", f"rollout.options.python={asked.python}", "rollout.options.load_format=dummy"),
        *(
            f"rollout.options.gpu_memory_utilization={asked.run_share}",
            "trainer.bitwise=true",
            "trainer.save_freq=2",
            "trainer.max_ckpt_to_keep=1",
        ),
        *(f"trainer.total_training_steps={asked.steps}", f"trainer.output_dir={folder}"),
        *("tracking.experiment_name=bitwise", "trainer.val_before_train=false", "tracking.loggers=[]"),
        *("trainer.save_huggingface=never", "rollout.ignore_eos=true"),
    ]
    began = time.perf_counter()
    if kill:
        ended = _until_two_steps(command, folder)
        print(f"{folder.name}: ended after two steps with exit code {ended}", flush=True)
    log = folder.with_suffix(".log")
    with log.open("w") as output:
        ended = subprocess.run(command, stdout=output, stderr=output, timeout=500).returncode
    if ended:
        raise SystemExit(f"{folder.name}: exit code {ended}\n{log.read_text()[-3000:]}")
    found = metrics_of(folder)
    print(f"{folder.name}: {len(found)} records, {time.perf_counter() - began:.0f} s", flush=True)
    return found


def _until_two_steps(command: list[str], folder: Path) -> int:
    process = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        files = list(folder.glob("bitwise/*/metrics.jsonl"))
        if files and len(files[0].read_text().splitlines()) >= 2:
            os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(0.05)
    return process.wait(60)


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("what", choices=("tokens", "runs"))
    cli.add_argument("--model", type=Path, required=True)
    cli.add_argument("--python", required=True, help="interpreter of vLLM")
    cli.add_argument("--data", type=Path, help="prompts of the runs")
    cli.add_argument("--plain", action="store_true", help="without the option")
    cli.add_argument("--prompts", type=int, default=64)
    cli.add_argument("--n", type=int, default=8)
    cli.add_argument("--prompt-tokens", type=int, default=128)
    cli.add_argument("--tokens", type=int, default=512)
    cli.add_argument("--updates", type=int, default=20)
    cli.add_argument("--update-rows", type=int, default=64)
    cli.add_argument("--micro-batch", type=int, default=8192)
    cli.add_argument("--engine-share", type=float, default=0.3, help="of the memory")
    cli.add_argument("--run-share", type=float, default=0.14, help="that of the engine of each of the runs")
    cli.add_argument("--vocabulary", type=int, default=50_000, help="ids of prompts are below")
    cli.add_argument("--alone", type=int, default=3, help="prompts that are generated once more, one by one")
    cli.add_argument("--steps", type=int, default=3)
    asked = cli.parse_args()
    raise SystemExit(not {"tokens": tokens, "runs": runs}[asked.what](asked))


if __name__ == "__main__":
    main()
