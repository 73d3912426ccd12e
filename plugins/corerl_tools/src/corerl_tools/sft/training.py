"""Supervised fine-tuning: cross-entropy on the assistant's tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from corerl.contracts.experience import Experience, collate
from corerl.contracts.trackers import TrackedRun
from corerl.contracts.training_strategies import MicroBatching, StrategySpec, TrainingStrategy
from corerl.data import load_tokenizer
from corerl.data.sampler import PromptSampler
from corerl.errors import ConfigError
from corerl.files import atomic_path, require_writable
from corerl.models import resolve_device
from corerl.objective import loss_weights
from corerl.plugins import Plugins
from corerl.telemetry.metrics import merge_means
from corerl.telemetry.metrics_log import MetricsLog
from corerl.terminal import say
from corerl_tools.live.console import LiveConsole
from corerl_tools.sft.chat import ChatDataset, ChatExample, load_chat
from corerl_tools.sft.config import SftConfig
from corerl_torch.supervised import SupervisedObjective


def run_sft(config: SftConfig, plugins: Plugins) -> Path:
    """Train, and write the model to ``output`` atomically; ``metrics.jsonl`` is beside its weights."""
    output = Path(config.output).expanduser()
    if output.exists() and not config.overwrite:
        raise ConfigError("output", f"{output} already exists; overwrite=true replaces it")
    if output.exists() and not (output / "config.json").is_file():
        raise ConfigError("output", f"{output} is not a model folder (it has no config.json) and is not replaced")
    require_writable(output.parent, "output")
    device = resolve_device(config.trainer.device, "trainer.device")
    strategy_factory = plugins.registries.training_strategies.select(config.trainer.strategy, "trainer.strategy")
    tokenizer = load_tokenizer(config.model, plugins)

    def load(files: Sequence[str], split: str) -> ChatDataset:
        chats = load_chat(files, tokenizer, config.data.max_length, config.data.apply_chat_template_kwargs)
        say(f"{split} data: {chats.report}")
        return chats

    train = load(config.data.train_files, "training")
    val = load(config.data.val_files, "validation") if config.data.val_files else None
    sampler = PromptSampler(len(train), config.data.train_batch_size, config.data.shuffle, config.trainer.seed)
    total_steps = config.trainer.total_training_steps or config.trainer.total_epochs * sampler.steps_per_epoch
    strategy = strategy_factory.load()(
        StrategySpec(
            model=config.model,
            device=device,
            micro_batching=MicroBatching(max_tokens=config.trainer.max_token_len_per_gpu),
            optim=config.optim,
            total_steps=total_steps,
            grad_clip=config.trainer.grad_clip,
            seed=config.trainer.seed,
        )
    )
    with atomic_path(output, folder=True) as folder:
        console = LiveConsole(TrackedRun("sft", output.name, folder, asdict(config), total_steps))
        with MetricsLog(folder / "metrics.jsonl", {"console": lambda run_id: console}) as log:
            for step, metrics in enumerate(_steps(strategy, train, sampler, total_steps), start=1):
                if val and (
                    step == total_steps or (config.trainer.test_freq > 0 and step % config.trainer.test_freq == 0)
                ):
                    metrics["val/loss"] = mean_loss(strategy, val.examples)
                log.write(metrics, step)
        strategy.export(folder)
    return output


def batch_of(examples: Sequence[ChatExample]) -> Experience:
    """Conversations as a batch: the tokens before the first learned token are the prompt, the others the response."""
    started = [(example, example.loss_mask.index(True)) for example in examples]
    return collate(
        [example.token_ids[:start] for example, start in started],
        [example.token_ids[start:] for example, start in started],
        list(range(len(examples))),
        masks=[example.loss_mask[start:] for example, start in started],
    )


def mean_loss(strategy: TrainingStrategy, examples: Sequence[ChatExample]) -> float:
    """Mean cross-entropy, in nats, of the learned tokens."""
    batch = batch_of(examples)
    log_probs = strategy.forward(batch, ["log_probs"]).log_probs
    assert log_probs is not None
    return -float(log_probs[batch.response_mask].mean())


def _steps(
    strategy: TrainingStrategy, train: ChatDataset, sampler: PromptSampler, total_steps: int
) -> Iterator[dict[str, float]]:
    objective = SupervisedObjective()
    for indices, _ in zip(sampler, range(total_steps), strict=False):
        batch = batch_of([train[index] for index in indices])
        batch.loss_weights = loss_weights(batch.response_mask, "token-mean")
        yield merge_means([strategy.update(batch, objective)], "train")
