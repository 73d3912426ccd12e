"""Runs on a cluster of two nodes of one machine, with GPUs on paper: an engine's two ranks on one node, and on two.

Prints as JSON the log-probs of the runs, and what the second one said, whose follower was killed after two steps.
"""

import io
import json
import os
import signal
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pyarrow.parquet as pq
import ray
from ray.cluster_utils import Cluster

from corerl.cli.main import run

FOLDER, PYTHON = Path(sys.argv[1]), sys.argv[2]

MARK = "CORERL_TEST_OF_NODES"
"""variable of all processes of these runs"""


def train(name: str, address: str, *overrides: str, ends: int = 0) -> tuple[list[list[list[float]]], str]:
    """Log-probs of the rollouts of each step, as the engine gave them, and the output; ``ends``: the exit code."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = run(
            [
                "train",
                str(FOLDER / "config.yaml"),
                f"tracking.experiment_name={name}",
                "actor.strategy=fsdp",
                f"runtime={{name: ray, n_gpus_per_node: 1, options: {{address: {address}}}}}",
                "rollout.name=vllm",
                f"rollout.options.python={PYTHON}",
                "rollout.options.load_format=dummy",
                "rollout.options.environment={VLLM_CPU_OMP_THREADS_BIND: nobind, OMP_NUM_THREADS: '1'}",
                "rollout.tensor_model_parallel_size=2",
                "rollout.verify_weights_freq=1",
                f"reward.scorer={FOLDER}/score.py:score",
                "algorithm.rollout_correction.max_log_prob_diff=1e-4",
                *overrides,
            ]
        )
    assert code == ends, said.getvalue()
    [folder] = (FOLDER / "runs" / name).iterdir()
    steps = sorted((folder / "rollouts").glob("*.parquet"))
    return [pq.read_table(step)["rollout_log_probs"].to_pylist() for step in steps], said.getvalue()


def leaders() -> set[int]:
    """Processes of engines: of each node one leads a group."""
    found, mark = set(), f"{MARK}={os.getpid()}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            is_own = mark in (process / "environ").read_bytes().split(b"\0")
            is_leader = os.getpgid(int(process.name)) == int(process.name)
        except OSError:
            continue
        if b"corerl_engine" in words and is_own and is_leader:
            found.add(int(process.name))
    return found


def kill_follower(name: str, before: set[int]) -> None:
    """Kill the second process of the run's engine, which the first one has started, after two steps."""
    while not any((FOLDER / "runs" / name).glob("*/rollouts/step_000002.parquet")):
        time.sleep(0.1)
    os.kill(
        max(leaders() - before, key=lambda pid: int(Path(f"/proc/{pid}/stat").read_text().split()[21])), signal.SIGKILL
    )


def cluster_of(*gpus: int) -> Cluster:
    """A cluster of nodes with so many GPUs each, and what the runs need."""
    os.environ[MARK] = str(os.getpid())
    # a reward that varies, so that weights change
    (FOLDER / "score.py").write_text("def score(response, truth, source, extra):\n    return len(response) % 2\n")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": gpus[0]})
    for each in gpus[1:]:
        cluster.add_node(num_cpus=4, num_gpus=each)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    return cluster


def main() -> None:
    cluster = cluster_of(2, 2)
    one, _ = train("one", cluster.address, "rollout.n_gpus_per_node=2")
    threading.Thread(target=kill_follower, args=("two", leaders()), daemon=True).start()
    over = ("rollout.nnodes=2", "rollout.n_gpus_per_node=1")
    two, said = train("two", cluster.address, *over, "trainer.total_training_steps=8")
    left = sorted(leaders())
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps({"one": one, "two": two, "said": said, "left": left}))


if __name__ == "__main__":
    main()
