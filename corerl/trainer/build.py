"""From a plan to a trainer, fitted."""

import gc
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from corerl.checkpoint.store import CheckpointStore
from corerl.seeding import Seeds
from corerl.telemetry.metrics_log import MetricsLog
from corerl.telemetry.notices import say
from corerl.trainer.loop import Trainer
from corerl.trainer.plan import Plan
from corerl.trainer.requests import training_sampling, validation_sampling
from corerl.trainer.run import Run, new_folder
from corerl.trainer.scoring import Notices
from corerl.trainer.workers import PolicyWorker, ReferenceWorker, RolloutWorker


def train(plan: Plan) -> Path:
    """Run a training from its first step, or from the checkpoint it resumes, to its last; returns the run's folder."""
    config, parts, checkpoint = plan.config, plan.parts, plan.checkpoint
    with ExitStack() as stack:
        scorers = {source: scorer.load() for source, scorer in plan.scorers.items()}
        reward = parts.reward_manager.load()(
            scorers, num_workers=config.reward.num_workers, timeout=config.reward.timeout
        )
        stack.callback(reward.close)
        runtime = parts.runtime.load()(config.runtime)
        stack.callback(runtime.close)
        actor = runtime.spawn("actor", PolicyWorker, config, plan.total_steps * plan.updates_per_step)
        needs_ref = parts.kl_loss or parts.kl_penalty or parts.policy_loss.entry.needs_ref
        reference = runtime.spawn("ref", ReferenceWorker, config) if needs_ref else None
        rollout = runtime.spawn("rollout", RolloutWorker, config)
        stack.callback(rollout.close)
        if checkpoint is not None:
            actor.load(checkpoint.path / "actor")
        run = Run(config, parts, plan.plugins, checkpoint.run_folder if checkpoint else new_folder(config))
        run.describe()
        say(f"run folder: {run.folder}")
        log = _open_log(run, plan)
        stack.callback(log.close)
        trainer = Trainer(
            run=run,
            actor=actor,
            rollout=rollout,
            reference=reference,
            reward=reward,
            estimate_advantages=parts.adv_estimator.load(),
            kl_penalty=parts.kl_penalty.load() if parts.kl_penalty else None,
            tokenizer=plan.tokenizer,
            train_prompts=plan.train_prompts,
            val_prompts=plan.val_prompts,
            sampler=plan.sampler,
            notices=Notices(plan.scorers),
            log=log,
            checkpoints=CheckpointStore(run.folder / "checkpoints", config.checkpoint.max_to_keep),
            seeds=Seeds(config.trainer.seed),
            training_sampling=training_sampling(config, plan.tokenizer.stop_token_ids),
            validation_sampling=validation_sampling(config, plan.tokenizer.stop_token_ids),
            shape=actor.shape(),
            total_steps=plan.total_steps,
            step=checkpoint.step if checkpoint else 0,
        )
        gc.freeze()  # all of this lives as long as the run; walking through it would cost 0.1 s now and then
        stack.callback(gc.unfreeze)
        _fit(trainer)
    return run.folder


def _open_log(run: Run, plan: Plan) -> MetricsLog:
    tracking = run.config.tracking
    trackers = [
        tracker.load()(
            project_name=tracking.project_name,
            experiment_name=tracking.experiment_name,
            run_dir=run.folder,
            config=asdict(run.config),
            total_steps=plan.total_steps,
        )
        for tracker in run.parts.trackers
    ]
    return MetricsLog(run.folder / "metrics.jsonl", trackers, plan.checkpoint.step if plan.checkpoint else -1)


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
