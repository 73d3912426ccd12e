"""A student and its teachers, run by real strategies; a dense reference of the loss."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from corerl.batch.rollouts import Rollouts
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.contracts.experience import Experience
from corerl.contracts.rollout_backends import Completion
from corerl.contracts.throughput import ModelShape
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.data import load_tokenizer
from corerl.data.prompts import Prompt
from corerl.objective import PolicyObjective, loss_weights
from corerl_distill.annotator import Teachers
from corerl_distill.loss import distill
from corerl_distill.of_logits import make
from corerl_distill.options import DistillOptions, role_name
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_testing.tiny_model import write_byte_tokenizer


def write_model(folder: Path, *, hidden: int = 32, vocabulary: int = 259, seed: int = 0, tied: bool = False) -> Path:
    """A random Llama of two layers with the tokenizer of bytes."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.1,
        tie_word_embeddings=tied,
        eos_token_id=258,
        architectures=["LlamaForCausalLM"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def rollouts(sources: list[str], *, extra: str = "") -> Rollouts:
    """One response of 2, 3, … tokens to each row."""
    prompts, completions = [], []
    for row, source in enumerate(sources):
        messages: list[Any] = [{"role": "user", "content": f"{row}?"}]
        text = f"<|im_start|>user\n{row}?<|im_end|>\n<|im_start|>assistant\n"
        ids = tuple(load_bytes(text))
        prompts.append(Prompt(row, ids, messages, source, f"answer {row}", {"hint": extra}))
        tokens = [(7 * row + 3 * step) % 256 for step in range(row + 2)]
        completions.append(Completion(tokens, [-1.0] * len(tokens), "stop", 0))
    return Rollouts(prompts, completions, ["x"] * len(prompts), list(range(len(prompts))))


def load_bytes(text: str) -> list[int]:
    """The token ids of a chat in the tokenizer of bytes."""
    ids: list[int] = []
    for part in text.split("<|"):
        name, special, rest = part.partition("|>")
        if special:
            ids.append({"im_start": 257, "im_end": 258}[name])
            ids += rest.encode()
        else:
            ids += part.encode()
    return ids


def strategy(path: Path, *, temperature: float = 1.0, **options: Any) -> SingleDeviceStrategy:
    """The model at ``path``, trained in micro-batches of two rows."""
    config = TrainConfig(ModelConfig(str(path), dtype="fp32"))
    spec = StrategySpec(
        config.model, "cpu", MicroBatching(max_sequences=2), optim=config.actor.optim, temperature=temperature
    )
    return SingleDeviceStrategy(spec, TorchOptions(**options))


class Policy:
    """The workers of a policy, as the teachers call them."""

    def __init__(self, strategy: SingleDeviceStrategy) -> None:
        self.forward = strategy.forward
        self._strategy = strategy

    def forward_averaged(self, batch: Experience, wanted: Any) -> Any:
        with self._strategy.averaged():
            return self._strategy.forward(batch, wanted)


class Class:
    """A student and its teachers."""

    def __init__(
        self,
        student: Path,
        options: DistillOptions,
        *,
        temperature: float = 1.0,
        prompts: Sequence[Prompt] = (),
        **torch_options: Any,
    ) -> None:
        self.config = TrainConfig(ModelConfig(str(student), dtype="fp32"))
        self.config.actor.device, self.config.rollout.temperature = "cpu", temperature
        self.options = options
        self.student = strategy(student, temperature=temperature, **torch_options)
        others = {
            role_name(name): strategy(Path(each.path or student), temperature=temperature)
            for name, each in options.named.items()
            if each.url is None and each.weights == "own"
        }
        self.policy = Policy(self.student)
        vocabulary = self.student.shape().vocabulary
        models = SimpleNamespace(actor=self.policy, others=others, shape=ModelShape(1, 1, 1, vocabulary=vocabulary))
        tokenizer = load_tokenizer(self.config.model)
        self.plan = SimpleNamespace(config=self.config, tokenizer=tokenizer, train_prompts=prompts)
        self.teachers = Teachers(options, self.plan, models)
        self.objective = PolicyObjective(partial(distill, options=options), of_logits=make(self.config, options))

    def batch(self, given: Rollouts, masked: tuple[int, int] | None = None) -> Experience:
        """The mini-batch of all rows, annotated; ``masked``: row and step that is not trained on."""
        experience = given.experience()
        if masked is not None:
            experience.response_mask[masked] = False
        experience.old_log_probs = self.student.forward(experience, ["log_probs"]).log_probs
        experience.advantages = torch.zeros(experience.response_mask.shape)
        experience.loss_weights = loss_weights(experience.response_mask, "token-mean")
        self.teachers.annotate(experience, torch.arange(len(experience)), given)
        return experience

    def loss_and_gradient(self, batch: Experience) -> tuple[float, dict[str, torch.Tensor]]:
        """Over micro-batches, as an update."""
        self.student.optimizer.zero_grad()
        norm: dict[str, torch.Tensor] = {}
        self.student._step = lambda: (
            norm.update(  # type: ignore[method-assign,assignment]
                {
                    name: each.grad.clone()
                    for name, each in self.student.model.named_parameters()
                    if each.grad is not None
                }
            )
            or 0.0
        )
        self.student.spec = self._unclipped()
        metrics = self.student.update(batch, self.objective)
        return float(metrics["pg_loss"].value), norm

    def _unclipped(self) -> StrategySpec:
        import dataclasses

        return dataclasses.replace(self.student.spec, grad_clip=1e9)
