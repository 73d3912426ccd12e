"""A GRPO step with one engine of two ranks over two nodes of Ray, which are two GPUs of one machine.

    python benchmarks/gpu/engine_nodes.py --python .venv-vllm/bin/python                 # two GPUs, about 90 s
    python benchmarks/gpu/engine_nodes.py --device cpu --python .venv-vllm-cpu/bin/python

Each node has one GPU (``CUDA_VISIBLE_DEVICES`` of its raylet). Two ranks of ``fsdp`` train, one on each. vLLM has the
same two GPUs under tensor parallel: its head on one node, a follower on the other. Weights are random, in a published
shape; the engine gets them whole by ``ipc`` on the head's node, and its first rank broadcasts them to the other.

A line for each step: seconds; ``update`` is a whole update of the engine's weights, with digests of all tensors in both
ranks. ``difference`` is the mean difference of log-probs of engine and trainer: the second step samples from weights
that were updated over both nodes. Exit code 1: the run failed, the difference exceeds ``limit``, or a process of the
engine is left.

On the CPU, nodes have GPUs on paper.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import ray
from ray.cluster_utils import Cluster
from rich.console import Console
from rich.table import Table

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics
from corerl_testing.published_shapes import SHAPES, published_config

NODES = 2

SCORER = """
def score(response, ground_truth, data_source, extra_info):
    return len(response) % 2
"""
"""a reward that varies, so that weights change: a random model solves nothing"""

LIMIT = {"cpu": 1e-4, "cuda": 0.3}
"""of log-probs' mean absolute difference: float32; bfloat16 of two dozen layers"""


def material(folder: Path, shape: str, *, small: bool) -> Path:
    """Write data, tokenizer and config of the model; returns the config of the run that names them."""
    sizes = ["--train-size", "256", "--test-size", "8", "--sft-size", "8"]
    assert run(["prepare", "arithmetic", "--out", str(folder / "data"), *sizes]) == 0
    corpus = ["--corpus", str(folder / "data" / "train.parquet"), "--no-weights", "--hidden-size", "64", "--heads", "2"]
    assert run(["tiny-model", "--out", str(folder / "model"), "--vocab-size", "300", "--kv-heads", "2", *corpus]) == 0
    if not small:
        published_config(shape).save_pretrained(folder / "model")
    (folder / "score.py").write_text(SCORER)
    named = {
        "reward": {"scorer": f"{folder}/score.py:score"},
        "model": {"path": f"{folder}/model", "load_format": "dummy"},
        "data": {"train_files": [f"{folder}/data/train.parquet"]},
        "trainer": {"output_dir": f"{folder}/runs"},
    }
    (folder / "config.yaml").write_text(json.dumps(named))
    return folder / "config.yaml"


def cluster_of_nodes(device: str) -> Any:
    """Each node sees one GPU."""
    cluster, before = None, os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = (before or ",".join(map(str, range(NODES)))).split(",")
    for node in range(NODES):
        if device == "cuda":
            os.environ["CUDA_VISIBLE_DEVICES"] = visible[node]
        resources: dict[str, Any] = {"num_cpus": 8, "num_gpus": 1}
        if cluster is None:
            cluster = Cluster(initialize_head=True, head_node_args=resources)
        else:
            cluster.add_node(**resources)
    if before is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = before
    return cluster


def engines(python: str) -> int:
    """Processes of engines that are there."""
    found = 0
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes().split(b"\0")
        except OSError:
            continue
        found += words[0] == python.encode() and b"corerl_engine" in words
    return found


def keys(asked: argparse.Namespace, address: str) -> list[str]:
    small = asked.device == "cpu"
    size, response = (8, 8) if small else (64, 128)
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"} if small else {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}
    return [
        *(f"data.train_batch_size={size}", f"data.max_response_length={response}", "data.max_prompt_length=64"),
        *("actor.strategy=fsdp", f"actor.device={asked.device}", f"actor.ppo_mini_batch_size={size}"),
        f"model.dtype={'fp32' if small else 'bf16'}",
        "actor.optim.lr=1e-4",
        f"runtime={{name: ray, nnodes: {NODES}, n_gpus_per_node: 1, options: {{address: {address}}}}}",
        *("rollout.name=vllm", "rollout.n=4", f"rollout.tensor_model_parallel_size={NODES}"),
        *(f"rollout.options.python={asked.python}", "rollout.options.load_format=dummy"),
        *("rollout.options.enforce_eager=true", "rollout.options.max_model_len=512", "rollout.verify_weights_freq=1"),
        f"rollout.options.environment={json.dumps(environment)}",
        "algorithm.rollout_correction.max_log_prob_diff=.inf",
        *(f"trainer.total_training_steps={asked.steps}", "trainer.val_before_train=false", "trainer.save_freq=-1"),
        *("trainer.test_freq=-1", "tracking.loggers=[]", "tracking.experiment_name=nodes", "data.val_files=[]"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter of the environment that holds vLLM")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--steps", type=int, default=2)
    asked = parser.parse_args()
    asked.python = str(Path(asked.python).absolute())
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = material(folder, asked.shape, small=asked.device == "cpu")
        cluster = cluster_of_nodes(asked.device)
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        starting = time.monotonic()
        code = run(["train", str(config), *keys(asked, cluster.address)])
        whole = time.monotonic() - starting
        logs = (folder / "runs").glob("*/*/metrics.jsonl")
        steps = [step for log in logs for step in read_metrics(log) if "timing_s/step" in step]
        ray.shutdown()
        cluster.shutdown()
    deadline = time.monotonic() + 15
    while (left := engines(asked.python)) and time.monotonic() < deadline:
        time.sleep(0.5)
    made = Table(
        "step", "gen s", "update s", "handover s", "step s", "difference", "limit", title=f"2 nodes, {asked.device}"
    )
    fails = bool(code or left or len(steps) != asked.steps)
    for number, step in enumerate(steps, 1):
        names = ("timing_s/gen", "timing_s/update_weights", "timing_s/handover", "timing_s/step")
        difference = step["rollout_corr/log_prob_abs_diff"]
        fails |= not difference < LIMIT[asked.device]
        seconds = [f"{step.get(each, 0.0):.2f}" for each in names]
        made.add_row(str(number), *seconds, f"{difference:.2e}", f"{LIMIT[asked.device]:g}")
    Console(width=120).print(made)
    print(f"run {whole:.0f} s, all {time.monotonic() - began:.0f} s; exit code of the run {code}, engines left {left}")
    return int(fails)


if __name__ == "__main__":
    sys.exit(main())
