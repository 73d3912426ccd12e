"""All steps of ``corerl check``, in the order in which a run would fail."""

import dataclasses
import importlib.util
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corerl.contracts.config import TrainConfig
from corerl.errors import RequestError, UntrustedError
from corerl.files import require_writable
from corerl.plugins import Plugins
from corerl.registry.parts import Parts
from corerl_check import GIB, Finding, Machine, ModelSize, detect, finding, from_error, installed, longest, model_size
from corerl_tools.check import (
    adapters,
    configuration,
    experts,
    memory,
    memory_findings,
    precision,
    shards,
    surroundings,
)
from corerl_tools.check.savings import Run, Savings


@dataclass
class Report:
    """The result of ``corerl check``; ``estimate`` is None if the model's size or the parts are not known."""

    findings: list[Finding] = field(default_factory=list)
    estimate: memory.Estimate | None = None
    plan: str = ""
    """one line about a step of the run; '' if not known"""

    def add(self, found: Iterable[Finding]) -> None:
        """Add findings, up to the first that depends on code that must not run."""
        with suppress(UntrustedError):
            for each in found:
                self.findings.append(each)

    @property
    def is_right(self) -> bool:
        """Whether there is no error."""
        return all(each.severity != "error" for each in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; memory in bytes."""
        phases = [] if self.estimate is None else [dataclasses.asdict(phase) for phase in self.estimate.phases]
        return {
            "ok": self.is_right,
            "plan": self.plan,
            "findings": [dataclasses.asdict(each) for each in self.findings],
            "memory": phases,
            "sequences_in_cache": self.estimate.sequences if self.estimate else None,
        }


def check(
    file: Path,
    overrides: Sequence[str] = (),
    plugin: Sequence[str] = (),
    disable_plugin: Sequence[str] = (),
    planned: Machine | None = None,
) -> Report:
    """Check everything that can be known before a run starts; reads no weights and writes nothing.

    Args:
        planned: the GPUs of the machine that is planned for; None: the GPUs of this machine.
    """
    looked = configuration.look(file, overrides, plugin, disable_plugin)
    report, config = Report(looked.findings), looked.config
    if config is None or looked.plugins is None:
        return report
    missing = [name for name in ("torch", "corerl_torch") if importlib.util.find_spec(name) is None]
    if missing:
        sentence = f"there is no {missing[0]} here, which comes with the distributions that run models"
        report.findings.append(finding("error", "", sentence, "pip install corerl-fsdp corerl-hf, for a start."))
        return report

    from corerl_tools.check import data

    machine = planned or detect()
    report.add(_device(config, machine))
    if not machine.planned:
        report.add([*_bytecode(), *surroundings.look(config)])
    if looked.parts is not None:
        report.add(installed.look(config, looked.parts, machine))
        report.add(_checkpoint(config, looked.parts, looked.plugins))
    report.add(_output(config))
    sizes: dict[str, ModelSize] = {}
    if config.model.path != configuration.NOT_GIVEN:
        report.add(data.look(config, looked.parts, looked.plugins, _scorers_are_known(looked.findings)))
        with suppress(UntrustedError):
            sizes = _sizes(config, looked.parts, looked.plugins, _on(config, machine), report.findings)
    report.add(_truncated_sampling(config, sizes["actor"].vocabulary if sizes else None))
    report.add(precision.look(config, looked.parts, _on(config, machine)))
    report.add(_order(config))
    report.add(_overrides(config))
    if looked.parts is not None and sizes:
        report.add(_shapes(config, sizes["actor"]))
        report.add(adapters.look(config, looked.parts, sizes["actor"]))
        report.add(experts.look(config, looked.parts, sizes["actor"]))
        report.add(shards.look(config, looked.parts, looked.plugins, sizes["actor"]))
        with suppress(UntrustedError):
            run, device = Run(config, looked.parts), _on(config, machine)

            def estimate(run: Run) -> memory.Estimate:
                frees = _frees_engine(run.config, machine)
                return memory.estimate(run.config, run.parts, sizes, machine, frees_engine=frees, device=device)

            report.estimate = estimate(run)
            remedy = Savings(run, looked.plugins, estimate, device, machine).remedy
            report.add(memory_findings.look(report.estimate, machine, config, device, remedy))
    order = ("error", "warning", "note")
    report.findings = sorted(dict.fromkeys(report.findings), key=lambda each: order.index(each.severity))
    report.plan = _plan(config, machine)
    return report


def _scorers_are_known(findings: Sequence[Finding]) -> bool:
    """Whether no error has dropped a part that may score: without it, each data source would seem to lack a scorer."""
    of_scores = ("reward.", "rollout.agent", "rollout.multi_turn.environment")
    return not any(each.severity == "error" and each.key.startswith(of_scores) for each in findings)


def _on(config: TrainConfig, machine: Machine) -> str:
    """The device that ``actor.device`` selects on ``machine``."""
    if config.actor.device == "auto" or machine.planned:
        return "cuda" if machine.gpus or config.runtime.n_gpus_per_node else "cpu"
    return config.actor.device


def _frees_engine(config: TrainConfig, machine: Machine) -> bool:
    shares = _on(config, machine) == "cuda" and not config.rollout.n_gpus_per_node
    free = config.rollout.free_cache_engine
    return shares and not config.trainer.max_staleness if free is None else free


def _plan(config: TrainConfig, machine: Machine) -> str:
    prompts, responses = config.data.train_batch_size, config.data.train_batch_size * config.rollout.n
    updates = config.actor.ppo_epochs * max(1, prompts // config.actor.ppo_mini_batch_size)
    where = (
        "planned GPUs" if machine.planned else machine.name or "GPUs" if _on(config, machine) == "cuda" else "the CPU"
    )
    return (
        f"a step is {prompts} prompts × {config.rollout.n} responses = {responses}, in {updates} updates of "
        f"{config.actor.ppo_mini_batch_size} × {config.rollout.n}, on {where}"
    )


def _device(config: TrainConfig, machine: Machine) -> Iterator[Finding]:
    from corerl.models import resolve_device

    if not machine.planned:
        try:
            resolve_device(config.actor.device)
        except RequestError as error:
            yield from_error(error, "actor.device")


def _bytecode() -> Iterator[Finding]:
    """A finding for packages that every process compiles when it imports them."""
    if not sys.dont_write_bytecode:
        return
    specs = {name: importlib.util.find_spec(name) for name in ("torch", "transformers", "vllm", "sglang")}
    found = [name for name, spec in specs.items() if spec and spec.origin and not _is_compiled(spec.origin)]
    if found:
        sentence = "PYTHONDONTWRITEBYTECODE is set, and each process compiles the modules that it imports"
        yield finding("warning", "", f"{sentence}: there is no bytecode of {' and '.join(found)}")


def _is_compiled(source: str) -> bool:
    return Path(importlib.util.cache_from_source(source)).exists()


def _checkpoint(config: TrainConfig, parts: Parts, plugins: Plugins) -> Iterator[Finding]:
    """Findings about the checkpoint from which this run would resume."""
    from corerl.checkpoint.identity import digests
    from corerl.checkpoint.resume import find_checkpoint

    if "://" in (mode := config.trainer.resume_mode):
        yield finding("note", "trainer.resume_mode", f"the start of the run fetches {mode}, and verifies it")
        return
    try:
        checkpoint = find_checkpoint(config, config.trainer.total_training_steps or sys.maxsize)
        if checkpoint is not None:
            read = digests(dataclasses.asdict(config), {"data.train_files": "", "data.val_files": ""})
            given = {"versions": parts.versions(), "aliases": plugins.config_aliases(), "digests": read}
            plugins.hook.check_resumed(checkpoint=checkpoint, config=config, **given)
            yield finding("note", "trainer.resume_mode", f"the run goes on from {checkpoint.path}")
    except RequestError as error:
        yield from_error(error, "trainer.resume_mode")


def _output(config: TrainConfig) -> Iterator[Finding]:
    folder = Path(config.trainer.output_dir).expanduser().absolute()
    try:
        require_writable(Path(config.trainer.output_dir), "trainer.output_dir")
    except RequestError as error:
        yield from_error(error)
        return
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    if free < GIB:
        yield finding("warning", "trainer.output_dir", f"{free / GIB:.1f} GiB of disk are free below {folder}")


def _truncated_sampling(config: TrainConfig, vocabulary: int | None) -> Iterator[Finding]:
    """Findings for training samples from a truncated vocabulary, whose log-probs cover the whole one."""
    rollout = config.rollout
    given: dict[str, tuple[float, float]] = {}
    if rollout.top_p < 1:
        given["rollout.top_p"] = (rollout.top_p, 1.0)
    if rollout.top_k > 0 and (vocabulary is None or rollout.top_k < vocabulary):
        given["rollout.top_k"] = (rollout.top_k, -1)
    if rollout.min_p > 0:
        given["rollout.min_p"] = (rollout.min_p, 0.0)
    if not given:
        return
    limits = " and ".join(f"{key}={value}" for key, (value, _) in given.items())
    if "kept_tokens" in rollout.record:
        most = f"at most {rollout.top_k} of them" if rollout.top_k > 0 else "their number has no limit (rollout.top_k)"
        sentence = f"with {limits}, the ids of the kept tokens travel with each sampled token, 4 bytes each: {most}"
        yield finding("note", "rollout.record", sentence)
        return
    yield finding(
        "warning",
        next(iter(given)),
        f"{limits}: responses are drawn from a truncated distribution, and the log-probs of training are over the "
        "whole vocabulary, so the policy gradient, importance weights and KL estimates are biased",
        "Set rollout.record=[kept_tokens], and training computes over the kept tokens, or set "
        f"{' and '.join(f'{key}={whole}' for key, (_, whole) in given.items())} in training; rollout.val_kwargs may "
        "truncate.",
    )


def _overrides(config: TrainConfig) -> Iterator[Finding]:
    """The values of config.json that the config changes; wrong ones are errors of their own."""
    from corerl_torch.overrides import KEY, differences, violations

    if config.model.override_config and not list(violations(config.model)):
        changes = differences(config.model)
        unseen = f"could not be compared with the config.json of {config.model.path}, which is not downloaded yet"
        yield finding("note", KEY, unseen if changes is None else f"changes config.json: {'; '.join(changes)}")


def _order(config: TrainConfig) -> Iterator[Finding]:
    """Findings for an order of training that depends on the lengths of responses."""
    stale, window = config.trainer.max_staleness, config.trainer.batch_window
    if config.trainer.batch_order == "first_finished" and (stale or window):
        sentence = "a step trains the groups that finish first, so short responses are trained earlier than long ones"
        if not stale:
            begun = config.data.train_batch_size + (window or 0)
            sentence = (
                f"a step begins {begun} groups, trains the {config.data.train_batch_size} that finish first and ends "
                "the rest, so short responses are favoured, and a prompt with long ones may never be trained"
            )
        limits = "which limits how far a group is overtaken"
        remedy = f"Set trainer.{'' if stale else 'max_staleness=1 and '}batch_order=windowed, {limits}."
        yield finding("warning", "trainer.batch_order", sentence, remedy)


def _sizes(
    config: TrainConfig, parts: Parts | None, plugins: Plugins, device: str, findings: list[Finding]
) -> dict[str, ModelSize]:
    """The size of the model of each role; empty, with a finding, if a size cannot be known."""
    from corerl.models import critic_model

    sizes: dict[str, ModelSize] = {}
    needs_ref = parts is not None and parts.needs_ref and not adapters.shares_reference(config, parts)
    needs_critic = parts is not None and parts.value_loss is not None
    roles: list[tuple[str, str | None, str]] = [("actor", None, "model.path")]
    roles += [("ref", config.ref.path, "ref.path")] if needs_ref else []
    roles += [("critic", config.critic.path, "critic.path")] if needs_critic else []
    if parts is not None:
        further = (each for given in plugins.hook.model_roles(config=config, parts=parts) for each in given)
        roles += [(each.role.name, each.path, each.key) for each in further]
    for role, path, path_key in roles:
        model = dataclasses.replace(config.model, path=path or config.model.path)
        if role == "critic":
            model = critic_model(config)
        try:
            sizes[role] = model_size(model, device, "value" if role == "critic" else "lm")
        except RequestError as error:
            key = path_key if path else "model.path"
            if all(each.severity != "error" or each.key != key for each in findings):  # otherwise already reported
                findings.append(from_error(error, key))
            return {}
    return sizes


def _shapes(config: TrainConfig, size: ModelSize) -> Iterator[Finding]:
    """Findings about the heads, widths and positions of the model."""
    asked, split = longest(config), config.rollout.tensor_model_parallel_size
    if size.positions and asked > size.positions:
        yield finding(
            "warning",
            "data.max_response_length",
            f"data.max_prompt_length + data.max_response_length = {config.data.max_prompt_length} + "
            f"{config.data.max_response_length} = {asked} tokens, and the model's max_position_embeddings is "
            f"{size.positions}",
            "Lower one of the two, or use a model with a longer context.",
        )
    if size.heads % split or (size.key_value_heads % split and split % size.key_value_heads):
        works = ", ".join(str(each) for each in range(1, size.heads + 1) if size.heads % each == 0)
        yield finding(
            "error",
            "rollout.tensor_model_parallel_size",
            f"{split} does not divide the model's {size.heads} attention heads ({size.key_value_heads} of keys and "
            f"values); {works} would",
        )
    if (stages := config.rollout.pipeline_model_parallel_size) > size.layers:
        sentence = f"is {stages}, and the model has {size.layers} layers: set at most {size.layers}"
        yield finding("error", "rollout.pipeline_model_parallel_size", sentence)
    if (parts := config.rollout.data_parallel_size) > 1 and not size.experts_of_token:
        sentence = f"is {parts}, and the model has no experts to divide"
        remedy = "Set it to 1: GPUs beyond those of one engine get further engines, which divide the requests."
        yield finding("error", "rollout.data_parallel_size", sentence, remedy)
    tokens = config.actor.ppo_max_token_len_per_gpu
    if config.actor.use_dynamic_bsz and tokens is not None and tokens < asked:
        sentence = (
            f"is {tokens}, and a row may have {asked} tokens (data.max_prompt_length + data.max_response_length): such "
            "a row is a micro-batch of its own, which takes more memory than the limit says"
        )
        yield finding("warning", "actor.ppo_max_token_len_per_gpu", sentence, f"Set it to {asked} or more.")
