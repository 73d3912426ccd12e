"""A run before its models: everything that can be read and checked without one."""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from corerl.checkpoint.identity import digests
from corerl.checkpoint.resume import Checkpoint, find_checkpoint
from corerl.contracts.config import TrainConfig
from corerl.contracts.scorers import Scorer
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.prompts import Prompt, PromptDataset, load_prompts
from corerl.data.sampler import PromptSampler
from corerl.data.tokenizer import load_tokenizer
from corerl.files import reading, require_name, require_writable
from corerl.models import resolve_device
from corerl.plugins import Plugins
from corerl.registry import Selected
from corerl.registry.parts import ENVIRONMENT, Parts
from corerl.rollout.requests import check_media
from corerl.rollout.scoring import select_scorers
from corerl.terminal.notices import say


@dataclass(frozen=True)
class Plan:
    """What a run is about to do; ``checkpoint`` is the one it resumes, or None.

    Attributes:
        folder: of a run whose workers are started again: it goes on there.
        run_ids: of its trackers.
        digests: of what it reads (:mod:`corerl.checkpoint.identity`).
    """

    config: TrainConfig
    parts: Parts
    plugins: Plugins
    checkpoint: Checkpoint | None
    tokenizer: ChatTokenizer
    train_prompts: PromptDataset
    val_prompts: list[Prompt]
    sampler: PromptSampler
    scorers: dict[str, Selected[Scorer]]
    folder: Path | None = None
    run_ids: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def total_steps(self) -> int:
        return _total_steps(self.config, self.sampler)

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps of the policy in a training step."""
        actor = self.config.actor
        return actor.ppo_epochs * (self.config.data.train_batch_size // actor.ppo_mini_batch_size)

    @property
    def policy_updates(self) -> int:
        """Optimizer steps of the policy in the whole run."""
        return max(1, self.total_steps - self.config.trainer.critic_warmup) * self.updates_per_step

    @property
    def critic_updates(self) -> int:
        """Optimizer steps of the critic in the whole run."""
        actor, critic = self.config.actor, self.config.critic
        mini_batches = self.config.data.train_batch_size // (critic.ppo_mini_batch_size or actor.ppo_mini_batch_size)
        return self.total_steps * (critic.ppo_epochs or actor.ppo_epochs) * mini_batches

    def __str__(self) -> str:
        config = self.config
        responses = config.data.train_batch_size * config.rollout.n
        scorers = ", ".join(f"'{source}' by '{scorer.entry.name}'" for source, scorer in self.scorers.items())
        if (player := self.parts.others.get(ENVIRONMENT) or self.parts.agent) is not None:
            scorers = " and ".join(filter(None, [f"by the {player.entry.kind} '{player.entry.name}'", scorers]))
        scorers = scorers or f"by the reward manager '{self.parts.reward_manager.entry.name}'"
        return (
            f"{self.total_steps} steps of {config.data.train_batch_size} prompts × {config.rollout.n} responses "
            f"({responses}) in {self.updates_per_step} updates each, on {resolve_device(config.actor.device)}\n"
            f"scored: {scorers}"
        )


def _total_steps(config: TrainConfig, sampler: PromptSampler) -> int:
    return config.trainer.total_training_steps or config.trainer.total_epochs * sampler.steps_per_epoch


def make_plan(config: TrainConfig, parts: Parts, plugins: Plugins) -> Plan:
    """Read the tokenizer and the data, find the scorers; nothing is written.

    Raises:
        RequestError: the device, the engine, the output folder, the model's tokenizer, the data or a scorer cannot be
            used.
    """
    resolve_device(config.actor.device)
    plugins.hook.check_requirements(config=config, parts=parts)
    require_name(config.tracking.experiment_name, "tracking.experiment_name")
    require_writable(Path(config.trainer.output_dir), "trainer.output_dir")
    tokenizer = load_tokenizer(config.model, plugins)
    if fault := tokenizer.end_of_turn_fault():
        say(fault)
    train_prompts = load_prompts(config.data, config.data.train_files, tokenizer, "train")
    say(f"training data: {train_prompts.report}")
    rows = {"data.train_files": train_prompts.report.digest}
    val_prompts: list[Prompt] = []
    if config.data.val_files:
        validation = load_prompts(config.data, config.data.val_files, tokenizer, "val")
        say(f"validation data: {validation.report}")
        val_prompts, rows["data.val_files"] = list(validation), validation.report.digest
    read = digests(asdict(config), rows, tokenizer)
    own_order = parts.others.get("data.sampler")
    sampler = PromptSampler(
        len(train_prompts),
        config.data.gen_batch_size or config.data.train_batch_size,
        shuffle=config.data.shuffle,
        seed=config.trainer.seed if config.data.seed is None else config.data.seed,
        order=functools.partial(own_order.load(), train_prompts) if own_order else None,
    )
    sampler.prompt(0)  # a sampler that does not fit the data is an error here
    total_steps = _total_steps(config, sampler)
    fetched = plugins.hook.fetch_checkpoint(config=config, total_steps=total_steps)
    checkpoint = find_checkpoint(config, total_steps, fetched)
    if checkpoint is not None:
        require_writable(checkpoint.run_folder, "trainer.resume_mode")
        aliases = plugins.config_aliases()
        checkpoint = compared(checkpoint, config, plugins, versions=parts.versions(), aliases=aliases, digests=read)
        with reading(checkpoint.path / "state.json"):
            sampler.load_state_dict(checkpoint.sampler)
        say(f"resuming {checkpoint.path}")
    check_media([*train_prompts, *val_prompts], parts.rollout_backend.entry, parts.strategy.entry)
    sources = dict.fromkeys(prompt.data_source for prompt in [*train_prompts, *val_prompts])
    scored = parts.agent is None or config.rollout.multi_turn.score_response
    scorers = select_scorers(sources, parts, plugins.registries) if scored else {}
    data = train_prompts, val_prompts, sampler
    return Plan(config, parts, plugins, checkpoint, tokenizer, *data, scorers, digests=read)


def compared(checkpoint: Checkpoint, config: Any, plugins: Plugins, **given: Mapping[str, str]) -> Checkpoint:
    """The checkpoint without the parts of its state that a run of this config does not take.

    Args:
        given: further arguments of the hook ``check_resumed``.

    Raises:
        ConfigError: the run must not resume it.
    """
    check = plugins.hook.check_resumed
    if not check.get_hookimpls():
        say("the configuration is not compared with that of the checkpoint: pip install corerl-tools")
    return checkpoint.without(each for names in check(checkpoint=checkpoint, config=config, **given) for each in names)
