"""TRL's side of benchmarks/gpu/peers.py: ``GRPOTrainer`` on the same job, a line of JSON for each step.

Runs with TRL's Python, which needs no CoreRL. ``--tiny``: a small job without vLLM, on the CPU as well.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-not-found, unused-ignore]
from peers_verl import Job, compute_score
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found, unused-ignore]


def scores(completions: list[Any], **_: Any) -> list[float]:
    return [compute_score("", completion[0]["content"], "") for completion in completions]


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Clock(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Seconds of parts, and of each step from the end of the last one, or from its first call."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)
        self.start = 0.0

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            synchronize()
            start = time.perf_counter()
            result = function(*arguments, **options)
            synchronize()
            self.parts[part] += time.perf_counter() - start
            return result

        return call

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        synchronize()
        now = time.perf_counter()
        step, parts = now - self.start, dict(self.parts)
        if "prepared" in parts:  # generation, weights and reference are within it
            prepared = parts.pop("prepared")
            parts["update"] = step - prepared
            parts["rest"] = prepared - sum(parts.get(name, 0.0) for name in ("generation", "weights", "reference"))
        print("\n" + json.dumps({"step number": state.global_step, **parts, "step": step}), flush=True)
        self.parts.clear()
        self.start = now


def trainer_of(arguments: argparse.Namespace, job: Job, clock: Clock) -> Any:
    rows = [json.loads(line)["prompt"] for line in arguments.prompts.read_text(encoding="utf-8").splitlines()]
    responses = job.prompts * job.n
    vllm = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": arguments.memory,
        "vllm_max_model_length": job.prompt_length + job.response_length,
        "vllm_enable_sleep_mode": False,
        "vllm_importance_sampling_correction": False,
        "generation_kwargs": {"ignore_eos": True},
        "use_liger_kernel": True,
    }
    config = GRPOConfig(
        output_dir=str(arguments.folder),
        max_steps=job.steps,
        per_device_train_batch_size=arguments.sequences,
        gradient_accumulation_steps=responses // arguments.sequences,
        num_generations=job.n,
        max_completion_length=job.response_length,
        learning_rate=job.learning_rate,
        lr_scheduler_type="constant",
        beta=job.kl_coef,
        temperature=1.0,
        bf16=not arguments.tiny,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        shuffle_dataset=False,
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        **({} if arguments.tiny else vllm),
    )
    trainer = GRPOTrainer(
        model=str(arguments.model),
        reward_funcs=scores,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": row} for row in rows]),
        processing_class=AutoTokenizer.from_pretrained(arguments.model, padding_side="left"),
        callbacks=[clock],
    )
    wrap(trainer, clock)
    return trainer


def wrap(trainer: Any, clock: Clock) -> None:
    """Time the parts of a step."""
    trainer._generate_and_score_completions = clock.timed("prepared", trainer._generate_and_score_completions)
    if trainer.use_vllm:
        engine = trainer.vllm_generation
        engine.sync_weights = clock.timed("weights", engine.sync_weights)
        engine.generate = clock.timed("generation", engine.generate)
    untimed = trainer._get_per_token_logps_and_entropies
    of_reference = clock.timed("reference", untimed)

    def log_probs(model: Any, *arguments: Any, **options: Any) -> Any:
        return (of_reference if model is trainer.ref_model else untimed)(model, *arguments, **options)

    trainer._get_per_token_logps_and_entropies = log_probs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with the key prompt, in order")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--job", type=json.loads, default={}, help="values of Job, as JSON")
    parser.add_argument("--sequences", type=int, default=32, help="of a micro-batch")
    parser.add_argument("--memory", type=float, default=0.2, help="vLLM's share of the GPU")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    trainer_of(arguments, Job(**arguments.job), Clock()).train()


if __name__ == "__main__":
    main()
