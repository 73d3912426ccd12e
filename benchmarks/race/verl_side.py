"""verl's side of the race: its command line, tuned in verl's favour, and its curve, which its console prints."""

import re
import sys
from pathlib import Path

from job import Job

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gpu"))

import peers_verl  # noqa: E402

ACCURACY = re.compile(r"val-core/openai/gsm8k/\w+/mean@1'?: ?(?:np\.float\d+\()?([0-9.]+)")
REWARD = re.compile(r"critic/score/mean:(?:np\.float\d+\()?([0-9.e-]+)")
LENGTH = re.compile(r"response_length/mean:(?:np\.float\d+\()?([0-9.]+)")
INITIAL = "step:0 - "


def overrides(job: Job, model: Path, train: Path, test: Path, folder: Path, tokens: int, memory: float) -> list[str]:
    """Those of ``benchmarks/gpu/peers.md``, with real lengths, shuffled rows, evaluation and this reward.

    Args:
        tokens: of a micro-batch.
        memory: vLLM's share of the GPU.
    """
    sizes = job.prompts, job.n, job.prompt_length, job.response_length, job.steps, job.learning_rate, job.kl_coef
    tuned = peers_verl.overrides(peers_verl.Job(*sizes), model, train, folder, tokens, memory)
    rollout = "actor_rollout_ref.rollout"
    return [
        *(each for each in tuned if not each.startswith((f"{rollout}.ignore_eos", "trainer.total_epochs"))),
        f"data.val_files={test}",
        f"reward.custom_reward_function.path={HERE / 'reward.py'}",
        f"+{rollout}.engine_kwargs.vllm.max_cudagraph_capture_size={job.prompts * job.n}",
        "trainer.total_epochs=100",
        "trainer.val_before_train=true",
        f"trainer.test_freq={job.test_freq}",
    ]


def read(line: str) -> tuple[int, dict[str, float]] | None:
    """(step, numbers) of a line of verl's console; accuracy alone at step 0."""
    accuracy = ACCURACY.search(line)
    if INITIAL in line and accuracy:
        return 0, {"accuracy": float(accuracy[1])}
    found = peers_verl.step_of(line)
    if found is None:
        return None
    number, seconds = found
    numbers = {f"seconds/{name}": value for name, value in seconds.items()}
    named = {"accuracy": accuracy, "reward": REWARD.search(line), "response_length": LENGTH.search(line)}
    return number, numbers | {name: float(match[1]) for name, match in named.items() if match}
