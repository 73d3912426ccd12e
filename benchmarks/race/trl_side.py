"""TRL's side of the race: ``GRPOTrainer`` as ``benchmarks/gpu/peers.md`` has it; a line of JSON for each step.

Runs with TRL's Python, which needs no CoreRL.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from job import Job
from reward import compute_score, scores

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gpu"))

from peers_trl import Clock, wrap  # noqa: E402


class Curve(Clock):
    """A step's seconds by part, and every so many steps the greedy accuracy, whose seconds no step counts."""

    def __init__(self, job: Job, test: list[dict[str, Any]]) -> None:
        super().__init__()
        self.job, self.test = job, test
        self.trainer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._evaluate(0)
        super().on_train_begin(args, state, control, **more)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        super().on_step_end(args, state, control, **more)
        if state.global_step % self.job.test_freq == 0:
            self._evaluate(state.global_step)
            super().on_train_begin(args, state, control, **more)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        named = {"reward": "reward", "response_length": "completions/mean_length"}
        found = {ours: logs[theirs] for ours, theirs in named.items() if logs and theirs in logs}
        if found:
            print("\n" + json.dumps({"step number": state.global_step, **found}), flush=True)

    def _evaluate(self, step: int) -> None:
        from vllm import SamplingParams  # type: ignore[import-not-found, unused-ignore]

        engine = self.trainer.vllm_generation
        engine.sync_weights()
        tokenizer = self.trainer.processing_class
        prompts = [
            tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
            for row in self.test
        ]
        sampling = SamplingParams(temperature=0.0, max_tokens=self.job.response_length)
        outputs = engine.llm.generate(prompts, sampling, use_tqdm=False)
        texts = (output.outputs[0].text for output in outputs)
        found = [compute_score("", text, row["ground_truth"]) for text, row in zip(texts, self.test, strict=True)]
        print("\n" + json.dumps({"step number": step, "accuracy": sum(found) / len(found)}), flush=True)


def trainer_of(arguments: argparse.Namespace, job: Job, curve: Curve, train: list[dict[str, Any]]) -> Any:
    from datasets import Dataset  # type: ignore[import-not-found, unused-ignore]
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found, unused-ignore]

    config = GRPOConfig(
        output_dir=str(arguments.folder),
        max_steps=job.steps,
        per_device_train_batch_size=arguments.sequences,
        gradient_accumulation_steps=job.prompts * job.n // arguments.sequences,
        num_generations=job.n,
        max_completion_length=job.response_length,
        learning_rate=job.learning_rate,
        lr_scheduler_type="constant",
        beta=job.kl_coef,
        temperature=1.0,
        bf16=True,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        shuffle_dataset=False,
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=arguments.memory,
        vllm_max_model_length=job.prompt_length + job.response_length,
        vllm_enable_sleep_mode=False,
        vllm_importance_sampling_correction=False,
        use_liger_kernel=True,
    )
    trainer = GRPOTrainer(
        model=str(arguments.model),
        reward_funcs=scores,
        args=config,
        train_dataset=Dataset.from_list(train),
        processing_class=AutoTokenizer.from_pretrained(arguments.model, padding_side="left"),
        callbacks=[curve],
    )
    curve.trainer = trainer
    wrap(trainer, curve)
    return trainer


def rows_of(file: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows = pq.read_table(file).to_pylist()
    return [{"prompt": row["prompt"], "ground_truth": row["reward_model"]["ground_truth"]} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--job", type=json.loads, default={}, help="values of Job, as JSON")
    parser.add_argument("--sequences", type=int, default=32, help="of a micro-batch")
    parser.add_argument("--memory", type=float, default=0.3, help="vLLM's share of the GPU")
    arguments = parser.parse_args()
    job = Job(**arguments.job)
    curve = Curve(job, rows_of(arguments.test))
    trainer_of(arguments, job, curve, rows_of(arguments.train)).train()


if __name__ == "__main__":
    main()
