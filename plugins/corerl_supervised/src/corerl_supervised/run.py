"""From a plan to a trained model."""

import gc
import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from corerl.checkpoint import random_state
from corerl.checkpoint.branch import Branch
from corerl.checkpoint.store import CheckpointStore
from corerl.contracts.runs import Restarts
from corerl.contracts.runtimes import Role
from corerl.contracts.trackers import TrackedRun
from corerl.errors import CoreRLError
from corerl.files import atomic_path, remove, set_usual_modes
from corerl.models import cpu_threads
from corerl.telemetry.metrics_log import MetricsLog, openers
from corerl.trainer.models import BaseOfPolicy
from corerl.trainer.stopping import Stopping
from corerl_supervised.plan import Plan
from corerl_supervised.trainer import Records, Run, Trainer, fit
from corerl_supervised.workers import ReferenceModel, TrainedModel


def train(plan: Plan, stopping: Stopping | None = None) -> Path:
    """Train to the last step, and write the model into the folder of the run, which is returned.

    Workers that are lost are started again, as often as ``trainer.max_restarts`` allows.

    Args:
        stopping: that listens already; None: one that does in the meantime.

    Raises:
        Stopped: a signal asked for it; a checkpoint is saved.
    """
    with ExitStack() as stack:
        stopping = stopping or stack.enter_context(Stopping().listen())
        restarts: Restarts = plan.plugins.hook.make_restarts(plan=plan, stopping=stopping, stack=stack)
        restarts.take(plan.folder)
        if plan.checkpoint is None:
            _clear(plan.folder)
        while (again := _live(plan, restarts, stopping)) is not None:
            plan = again
            restarts.wait(plan)
    return plan.folder


def _live(plan: Plan, restarts: Restarts, stopping: Stopping) -> Plan | None:
    """What one set of workers comes to: None when the model is written, a plan to go on when they are lost."""
    random_state.seed(plan.config.trainer.seed)
    trainer = None
    try:
        with ExitStack() as stack:
            with stopping.abandonable():
                trainer = _start(plan, stack, restarts, stopping)
            gc.freeze()  # rows and models live as long as the run
            stack.callback(gc.unfreeze)
            _fit(trainer)
            _write_model(trainer)
    except CoreRLError as error:
        again: Plan = restarts.after(error, plan, trainer)
        return again
    return None


def _start(plan: Plan, stack: ExitStack, restarts: Restarts, stopping: Stopping) -> Trainer:
    """Workers and what is around them; ``stack`` ends all of it."""
    config, task = plan.config, plan.task
    roles = _roles(plan)
    runtime = plan.parts.runtime.load()(config.runtime)
    stack.callback(runtime.close)
    runtime.reserve(roles.values())
    model = runtime.spawn(roles["actor"], TrainedModel, config, plan.total_steps)
    reference: ReferenceModel | BaseOfPolicy | None = None
    if task.reference is not None:
        is_held = "ref" not in roles  # the model with its adapters off
        reference = (
            BaseOfPolicy(model) if is_held else runtime.spawn(roles["ref"], ReferenceModel, config, task.reference)
        )
    if plan.checkpoint is not None:
        model.load(plan.checkpoint.path / "actor")
        random_state.restore(plan.checkpoint.path)
    run = Run(config, plan.parts, plan.plugins, plan.folder)
    _describe(run)
    restarts.record(plan.total_steps)
    shape = model.shape()
    if shape.device_name:
        threads = torch.get_num_threads()
        torch.set_num_threads(cpu_threads(threads, "cuda"))
        stack.callback(torch.set_num_threads, threads)
    checkpoints = CheckpointStore(
        run.folder / "checkpoints",
        max_to_keep=config.trainer.max_ckpt_to_keep,
        branch=None if plan.checkpoint is None else Branch(scores=dict(plan.checkpoint.scores)),
        model_files=_model_files(plan),
        timeout=config.trainer.save_timeout,
    )
    records = Records(stack.enter_context(_open_log(run, plan)), checkpoints)
    step = plan.checkpoint.step if plan.checkpoint else 0
    return Trainer(run, plan, model, reference, task.objective(), shape, records, stopping, step)


def _roles(plan: Plan) -> dict[str, Role]:
    """The trained model, and the reference unless there is none or it is the trained model without its adapters."""
    model, reference, strategy = plan.config.model, plan.task.reference, plan.parts.strategy.entry
    is_held = model.lora_rank > 0 and reference == model.path and strategy.facts.adapters
    names = ("actor",) if reference is None or is_held else ("actor", "ref")
    return {name: Role(name, "trainer.strategy", strategy.name, strategy.facts.distributed) for name in names}


def _fit(trainer: Trainer) -> None:
    """Fit between the life-cycle hooks ``run_started`` and ``run_ended``."""
    run, error = trainer.run, None
    run.plugins.hook.run_started(run=run)
    try:
        fit(trainer)
    except BaseException as caught:
        error = caught
        raise
    finally:
        run.plugins.hook.run_ended(run=run, error=error)


def _write_model(trainer: Trainer) -> None:
    """Write the model's files into the folder of the run, ``config.json`` last: with it the model is whole."""
    folder = trainer.run.folder
    temporary = folder / ".model.tmp"
    remove(temporary)
    temporary.mkdir()
    trainer.model.export(temporary)
    config = temporary / "config.json"
    config.write_bytes(_model_config(trainer.plan, config.read_bytes()))
    set_usual_modes(temporary)
    for file in sorted(temporary.iterdir(), key=lambda file: file.name == "config.json"):
        file.replace(folder / file.name)
    remove(temporary)


def _model_files(plan: Plan) -> dict[str, bytes]:
    """The model's files beside weights, for ``corerl export``."""
    files = plan.tokenizer.model_files()
    return {**files, "config.json": _model_config(plan, files["config.json"])}


def _model_config(plan: Plan, content: bytes) -> bytes:
    return (json.dumps(plan.task.model_config(json.loads(content)), indent=2) + "\n").encode()


def _clear(folder: Path) -> None:
    """Remove an earlier run or model, but for the lock of this process."""
    for path in folder.iterdir():
        if path.name != ".lock":
            remove(path)


def _describe(run: Run) -> None:
    with atomic_path(run.folder / "config.yaml") as temporary:
        temporary.write_text(OmegaConf.to_yaml(OmegaConf.create(asdict(run.config))))


def _open_log(run: Run, plan: Plan) -> MetricsLog:
    names, checkpoint = plan.config.tracking, plan.checkpoint
    last_step = -1 if checkpoint is None else checkpoint.step
    resumed_from = None if checkpoint is None else checkpoint.step
    known: dict[str, Any] = {**({} if checkpoint is None else checkpoint.trackers), **plan.run_ids}
    tracked = TrackedRun(
        names.project_name, names.experiment_name, run.folder, asdict(run.config), plan.total_steps, resumed_from
    )
    opened = openers(plan.parts.trackers, tracked)
    return MetricsLog(run.folder / "metrics.jsonl", opened, last_step, state=known, timeout=names.timeout)
