"""From a config to a trainer, ready to fit."""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from corerl.checkpoint.store import CheckpointStore, find_checkpoint
from corerl.config.parts import Parts
from corerl.config.schema import TrainConfig
from corerl.data.prompts import Prompt, PromptDataset, load_prompts
from corerl.data.sampler import PromptSampler
from corerl.data.tokenizer import ChatTokenizer, load_tokenizer
from corerl.files import require_writable
from corerl.models import resolve_device
from corerl.plugins import Plugins
from corerl.seeding import Seeds
from corerl.telemetry.metrics_log import MetricsLog
from corerl.telemetry.notices import say
from corerl.trainer.loop import Trainer
from corerl.trainer.requests import training_sampling, validation_sampling
from corerl.trainer.run import Run, new_folder
from corerl.trainer.scoring import Notices, select_scorers
from corerl.trainer.workers import PolicyWorker, ReferenceWorker, RolloutWorker


def train(config: TrainConfig, parts: Parts, plugins: Plugins) -> Path:
    """Run a training from its first step, or from the checkpoint it resumes, to its last; returns the run's folder.

    What is cheap to check comes first: data and scorers before models, and nothing is written before both are fine.
    """
    resolve_device(config.actor.device)
    checkpoint = find_checkpoint(config.checkpoint.resume)
    require_writable(checkpoint.run_folder if checkpoint else Path(config.trainer.output_dir), "trainer.output_dir")
    tokenizer = load_tokenizer(config.model)
    train_prompts = load_prompts(config.data, config.data.train_files, tokenizer, "train")
    _tell(train_prompts, "training")
    val_prompts = _validation_prompts(config, tokenizer)
    sampler = PromptSampler(
        len(train_prompts),
        config.data.train_batch_size,
        shuffle=config.data.shuffle,
        seed=config.trainer.seed if config.data.seed is None else config.data.seed,
    )
    sources = dict.fromkeys(prompt.data_source for prompt in [*train_prompts, *val_prompts])
    scorers = select_scorers(sources, parts, plugins.registries)
    scoring = {source: scorer.load() for source, scorer in scorers.items()}
    total_steps = config.trainer.total_training_steps or config.trainer.total_epochs * sampler.steps_per_epoch
    with ExitStack() as stack:
        reward = parts.reward_manager.load()(
            scoring, num_workers=config.reward.num_workers, timeout=config.reward.timeout
        )
        stack.callback(reward.close)
        runtime = parts.runtime.load()(config.runtime)
        stack.callback(runtime.close)
        actor = runtime.spawn("actor", PolicyWorker, config, total_steps * _updates_per_step(config))
        needs_ref = parts.kl_loss or parts.kl_penalty or parts.policy_loss.entry.needs_ref
        reference = runtime.spawn("ref", ReferenceWorker, config) if needs_ref else None
        rollout = runtime.spawn("rollout", RolloutWorker, config)
        stack.callback(rollout.close)
        if checkpoint is not None:
            actor.load(checkpoint.path / "actor")
            sampler.load_state_dict(dict(checkpoint.sampler))
        run = Run(config, parts, plugins, checkpoint.run_folder if checkpoint else new_folder(config))
        run.describe()
        say(f"run folder: {run.folder}")
        step = checkpoint.step if checkpoint else 0
        log = _open_log(run, total_steps, step if checkpoint else -1)
        stack.callback(log.close)
        trainer = Trainer(
            run=run,
            actor=actor,
            rollout=rollout,
            reference=reference,
            reward=reward,
            estimate_advantages=parts.adv_estimator.load(),
            kl_penalty=parts.kl_penalty.load() if parts.kl_penalty else None,
            tokenizer=tokenizer,
            train_prompts=train_prompts,
            val_prompts=val_prompts,
            sampler=sampler,
            notices=Notices(scorers),
            log=log,
            checkpoints=CheckpointStore(run.folder / "checkpoints", config.checkpoint.max_to_keep),
            seeds=Seeds(config.trainer.seed),
            training_sampling=training_sampling(config, tokenizer.stop_token_ids),
            validation_sampling=validation_sampling(config, tokenizer.stop_token_ids),
            shape=actor.shape(),
            total_steps=total_steps,
            step=step,
        )
        _fit(trainer)
    return run.folder


def _validation_prompts(config: TrainConfig, tokenizer: ChatTokenizer) -> list[Prompt]:
    if not config.data.val_files:
        return []
    prompts = load_prompts(config.data, config.data.val_files, tokenizer, "val")
    _tell(prompts, "validation")
    return list(prompts)


def _tell(prompts: PromptDataset, split: str) -> None:
    say(f"{split} data: {prompts.report}")


def _updates_per_step(config: TrainConfig) -> int:
    actor = config.actor
    return actor.ppo_epochs * -(-config.data.train_batch_size // actor.ppo_mini_batch_size)


def _open_log(run: Run, total_steps: int, last_step: int) -> MetricsLog:
    tracking = run.config.tracking
    trackers = [
        tracker.load()(
            project_name=tracking.project_name,
            experiment_name=tracking.experiment_name,
            run_dir=run.folder,
            config=asdict(run.config),
            total_steps=total_steps,
        )
        for tracker in run.parts.trackers
    ]
    return MetricsLog(run.folder / "metrics.jsonl", trackers, last_step)


def _fit(trainer: Trainer) -> None:
    """Fit between the life-cycle hooks ``run_started`` and ``run_ended``."""
    run = trainer.run
    error: BaseException | None = None
    run.plugins.hook.run_started(run=run)
    try:
        trainer.fit()
    except BaseException as caught:
        error = caught
        raise
    finally:
        run.plugins.hook.run_ended(run=run, error=error)
