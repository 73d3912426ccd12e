"""From a plan to a trainer, fitted."""

import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from corerl.checkpoint import random_state
from corerl.checkpoint.branch import Branch
from corerl.checkpoint.store import CheckpointStore
from corerl.contracts.adapters import hold_reference
from corerl.contracts.annotators import ModelRole
from corerl.contracts.config import TrainConfig
from corerl.contracts.reward_managers import PartwiseRewardManager, RewardManager
from corerl.contracts.rollout_backends import RolloutBackendFactory
from corerl.contracts.runs import Restarts
from corerl.contracts.runtimes import Pool, Role, Runtime, StartsTogether
from corerl.contracts.trackers import TrackedRun
from corerl.errors import CoreRLError
from corerl.models import cpu_threads, resolve_device
from corerl.registry import Entry
from corerl.registry.modules import foreign_exits
from corerl.registry.parts import Parts
from corerl.rollout.engines import Engines
from corerl.rollout.episode_workers import EpisodeWorker, WorkerEpisodes, episode_role
from corerl.rollout.episodes import Episodes, make_episodes
from corerl.rollout.player import Player
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.requests import training_sampling
from corerl.rollout.scoring import load_reward_manager
from corerl.rollout.stream import Stream
from corerl.rollout.worker import RolloutWorker
from corerl.seeding import Seeds
from corerl.telemetry.metrics_log import MetricsLog, openers
from corerl.terminal.notices import say
from corerl.trainer.batch import Batch, make_corrector, make_guard
from corerl.trainer.device_sharing import DeviceSharing
from corerl.trainer.fit import fit
from corerl.trainer.loop import Trainer
from corerl.trainer.models import BaseOfPolicy, EarlyReference, Models
from corerl.trainer.plan import Plan
from corerl.trainer.records import Records
from corerl.trainer.run import Run, new_folder
from corerl.trainer.starting import Starts
from corerl.trainer.stopping import Stopping
from corerl.trainer.updates import Updates
from corerl.trainer.workers import CriticWorker, ModelWorker, PolicyWorker, ReferenceWorker


def train(plan: Plan, stopping: Stopping | None = None) -> Path:
    """Run a training from its first step, or from the checkpoint it resumes, to its last; returns the run's folder.

    Workers that are lost are started again, as often as ``trainer.max_restarts`` allows.

    Args:
        stopping: that listens already; None: one that does in the meantime.

    Raises:
        Stopped: a signal asked for it, while the workers start, too.
    """
    with ExitStack() as stack:
        stopping = stopping or stack.enter_context(Stopping().listen())
        restarts: Restarts = plan.plugins.hook.make_restarts(plan=plan, stopping=stopping, stack=stack)
        while not isinstance(outcome := _live(plan, restarts, stopping), Path):
            plan = outcome
            restarts.wait(plan)
    return outcome


def _live(plan: Plan, restarts: Restarts, stopping: Stopping) -> Path | Plan:
    """What one set of workers comes to: the run's folder when it is done, a plan to go on when they are lost."""
    random_state.seed(plan.config.trainer.seed)
    trainer = None
    try:
        with ExitStack() as stack:
            reward = load_reward_manager(plan.scorers, plan.config.reward, plan.parts.reward_manager)
            stack.callback(reward.close)  # a signal waits until this is sure: scorers may have processes
            with stopping.abandonable():
                trainer = _start(plan, reward, stack, restarts, stopping)
            gc.freeze()  # all of this lives as long as the run; walking through it would cost 0.1 s now and then
            stack.callback(gc.unfreeze)
            _fit(trainer)
    except CoreRLError as error:
        again: Plan = restarts.after(error, plan, trainer)
        return again
    return trainer.run.folder


def _start(plan: Plan, reward: RewardManager, stack: ExitStack, restarts: Restarts, stopping: Stopping) -> Trainer:
    """Workers and what is around them; ``stack`` ends all of it."""
    config, parts, checkpoint, hook = plan.config, plan.parts, plan.checkpoint, plan.plugins.hook
    finished = None  # without a plugin that reads the checkpoint's groups, they are played anew
    if checkpoint is not None and checkpoint.has_groups:
        finished = hook.read_groups(folder=checkpoint.path, prompts=plan.train_prompts, sampler=plan.sampler)
    further = [each for given in hook.model_roles(config=config, parts=parts) for each in given]
    roles = _roles(config, parts) | {each.role.name: each.role for each in further}
    runtime = parts.runtime.load()(config.runtime)
    starts = Starts()
    stack.callback(starts.join)
    stack.callback(runtime.close)
    runtime.reserve(roles.values())
    stopping.check()  # a library may have kept the exception of a signal, here and below
    scores = parts.agent is None or config.rollout.multi_turn.score_response
    sources = [*plan.scorers] if scores and isinstance(reward, PartwiseRewardManager) else None
    workers = _workers(plan, runtime, roles, starts, further, sources)
    actor, rollout = workers["actor"], workers["rollout"]
    others = {each.role.name: workers[each.role.name] for each in further}
    reference = workers.get("ref") or (BaseOfPolicy(actor) if parts.needs_ref else None)
    models = Models(actor, workers.get("critic"), reference, actor.shape(), others)
    engines = Engines(runtime, actor, rollout, config.rollout.max_restarts)
    stopping.check()
    folder = plan.folder or (checkpoint.run_folder if checkpoint else new_folder(config))
    run = Run(config, parts, plan.plugins, folder, plan.digests)
    restarts.take(run.folder)
    if checkpoint is not None:
        for name, model in models.trained.items():
            model.load(checkpoint.path / name)
        random_state.restore(checkpoint.path)
    run.describe()
    restarts.record(plan.total_steps)
    say(f"run folder: {run.folder}")
    log = stack.enter_context(_open_log(run, plan))
    seeds = Seeds(config.trainer.seed)
    if models.shape.device_name:
        threads = torch.get_num_threads()
        torch.set_num_threads(cpu_threads(threads, "cuda"))
        stack.callback(torch.set_num_threads, threads)
    most = config.rollout.max_concurrent_requests
    queue = RequestQueue(engines.generate, most, engines.engine_load, engines.abort)
    episodes: Episodes | None
    played: WorkerEpisodes | None = None
    measured: list[Callable[[], Mapping[str, float]]] = [queue.measured]
    if "episodes" in workers:
        played = WorkerEpisodes(workers["episodes"], queue, config.rollout.max_restarts)
        stack.callback(played.close)
        measured.append(played.measured)
    if played is not None and parts.agent is not None:
        episodes = played
    else:
        episodes = make_episodes(parts.agent, parts.others, config, plan.tokenizer, queue, hook)
    scoring = None if parts.agent is not None and sources is None else played
    scorer, most_tokens = reward if scores else None, config.data.max_response_length
    player = Player(queue, plan.tokenizer, scorer, most_tokens, episodes, scoring)
    stack.callback(player.close)
    early: EarlyReference | None = hook.make_early_reference(plan=plan, models=models, stack=stack)
    stream = Stream(
        config,
        player,
        plan.train_prompts,
        plan.sampler,
        seeds,
        training_sampling(config, plan.tokenizer.stop_token_ids),
        batch_filter=parts.batch_filter.load() if parts.batch_filter else None,
        greedy_baseline="greedy_baseline" in parts.adv_estimator.entry.needs,
        total_steps=plan.total_steps,
        finished=finished or (),
        vocabulary=models.shape.vocabulary,
        measured=lambda: {name: value for part in measured for name, value in part().items()},
        on_finished=early.finished if early is not None else None,
    )
    stack.callback(stream.close)
    stack.callback(engines.close)
    corrector = make_corrector(config, hook, models.shape)
    annotators = hook.make_annotator(plan=plan, models=models)
    elsewhere = {"folder": run.folder, "models": models, "corrector": corrector, "annotators": annotators}
    batch: Batch | None = hook.make_batch(plan=plan, runtime=runtime, **elsewhere)
    if batch is None:
        guard = make_guard(config, run.folder, hook)
        batch = Batch(config, hook, plan.tokenizer, parts.adv_estimator.load(), corrector, guard)
    records = Records(run, log, _checkpoint_store(run, plan))
    evaluated = {"run": run, "plan": plan, "stream": stream, "records": records}
    return Trainer(
        run=run,
        models=models,
        stream=stream,
        engines=engines,
        devices=_device_sharing(config, engines, models.all),
        kl_penalty=hook.make_kl_penalty(plan=plan, models=models) if parts.kl_penalty else None,
        batch=batch,
        updates=Updates(config, parts, models, batch, corrector, seeds, annotators),
        evaluation=hook.make_evaluation(**evaluated) if plan.val_prompts else None,
        records=records,
        stopping=stopping,
        total_steps=plan.total_steps,
        early_reference=early,
        workers=workers,
        restarts=restarts.count,
        step=checkpoint.step if checkpoint else 0,
    )


def _workers(
    plan: Plan,
    runtime: Runtime,
    roles: Mapping[str, Role],
    starts: Starts,
    further: Sequence[ModelRole],
    sources: Sequence[str] | None,
) -> dict[str, Any]:
    """Of each role that the run needs, by role; ``sources``: of :class:`EpisodeWorker`."""
    config, parts = plan.config, plan.parts
    needed: dict[str, tuple[type, tuple[Any, ...]]] = {"actor": (PolicyWorker, (plan.policy_updates,))}
    if parts.value_loss is not None:
        needed["critic"] = CriticWorker, (plan.critic_updates,)
    if parts.needs_ref and not hold_reference(config, parts.strategy.entry.facts):
        needed["ref"] = ReferenceWorker, ()
    needed |= {each.role.name: (ReferenceWorker, (each.path,)) for each in further}
    needed["rollout"] = RolloutWorker, ()
    if "episodes" in roles:
        needed["episodes"] = EpisodeWorker, (sources,)

    def start(name: str) -> Any:
        worker, args = needed[name]
        say(f"starting {name}: {roles[name].part}")
        return runtime.spawn(roles[name], worker, config, *args)

    both = runtime.starts_together if isinstance(runtime, StartsTogether) else lambda role: False
    together = {name: functools.partial(start, name) for name in needed if both(roles[name])}
    others = {name: functools.partial(start, name) for name in needed if name not in together}
    workers = starts.together(together)
    beside = {name: others.pop(name) for name in [*others] if roles[name].starts_beside}
    return workers | starts.one_by_one(others, beside)


def _roles(config: TrainConfig, parts: Parts) -> dict[str, Role]:
    backend = parts.rollout_backend.entry
    strategy, critic = parts.strategy.entry, (parts.critic_strategy or parts.strategy).entry
    ref = (parts.ref_strategy or parts.strategy).entry
    roles = [
        Role("actor", "actor.strategy", strategy.name, strategy.facts.distributed),
        Role("critic", "critic.strategy", critic.name, critic.facts.distributed),
        Role("ref", "ref.strategy", ref.name, ref.facts.distributed),
        replace(rollout_role(config, backend), starts_beside=backend.facts.starts_beside_models),
        episode_role(config, parts.agent),
    ]
    return {role.name: role for role in roles if role is not None}


def rollout_role(config: TrainConfig, backend: Entry[RolloutBackendFactory]) -> Role:
    """The role of the rollout workers, each a replica of the engine."""
    rollout = config.rollout
    own_pool = Pool(rollout.nnodes, rollout.n_gpus_per_node) if rollout.n_gpus_per_node else None
    return Role("rollout", "rollout.name", backend.name, distributed=True, gpus=rollout.gpus_per_engine, pool=own_pool)


def _device_sharing(config: TrainConfig, rollout: Engines, roles: Sequence[ModelWorker]) -> DeviceSharing:
    """The engine gives its memory back by default where it holds some that training could use."""
    shares = resolve_device(config.actor.device) == "cuda" and not config.rollout.n_gpus_per_node
    free = config.rollout.free_cache_engine
    if free is None:
        free = shares and not config.trainer.max_staleness
    return DeviceSharing(rollout, roles, free_engine=free, offload=config.trainer.offload_while_generating)


def _checkpoint_store(run: Run, plan: Plan) -> CheckpointStore:
    trainer, scores = run.config.trainer, {} if plan.checkpoint is None else dict(plan.checkpoint.scores)
    return CheckpointStore(
        run.folder / "checkpoints",
        max_to_keep=trainer.max_ckpt_to_keep,
        branch=Branch(trainer.keep_best_mode, scores),
        model_files=plan.tokenizer.model_files(),
        timeout=trainer.save_timeout,
    )


def _open_log(run: Run, plan: Plan) -> MetricsLog:
    names, last_step, known = run.config.tracking, -1, dict(plan.run_ids)
    resumed_from = None if plan.folder is None else -1
    if plan.checkpoint is not None:
        resumed_from = last_step = plan.checkpoint.step
        known = {**plan.checkpoint.trackers, **known}
    tracked = TrackedRun(
        names.project_name, names.experiment_name, run.folder, asdict(run.config), plan.total_steps, resumed_from
    )
    path = run.folder / "metrics.jsonl"
    return MetricsLog(path, openers(run.parts.trackers, tracked), last_step, state=known, timeout=names.timeout)


def _fit(trainer: Trainer) -> None:
    """Fit between the life-cycle hooks ``run_started`` and ``run_ended``."""
    run = trainer.run
    error: BaseException | None = None
    run.plugins.hook.run_started(run=run)
    try:
        with foreign_exits():
            fit(trainer)
    except BaseException as caught:
        error = caught
        raise
    finally:
        run.plugins.hook.run_ended(run=run, error=error)
