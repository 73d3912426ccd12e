"""A training before its models: everything that can be read and checked without one."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from corerl import __version__
from corerl.checkpoint.identity import digests
from corerl.checkpoint.resume import Checkpoint, newest_whole
from corerl.contracts.checks import CheckedOptions
from corerl.contracts.config import ActorConfig, TrainConfig
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.sampler import PromptSampler
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import ConfigError, RequestError
from corerl.files import reading, require_writable
from corerl.models import resolve_device
from corerl.plugins import Plugins
from corerl.registry import Selected
from corerl.terminal import say
from corerl.trainer.plan import compared
from corerl_supervised.config import SupervisedConfig
from corerl_supervised.tasks import Rows, Task, task_of
from corerl_torch import overrides
from corerl_torch.optimizers.rules import violations as optimizer_violations


@dataclass(frozen=True)
class Parts:
    """The registered parts of a training, by the name of their key."""

    strategy: Selected[Any]
    runtime: Selected[Any]
    trackers: tuple[Selected[Any], ...]
    others: Mapping[str, Selected[Any]]

    def used(self) -> Iterator[tuple[str, Selected[Any]]]:
        """(name, part) of all."""
        yield from (("strategy", self.strategy), ("runtime", self.runtime), *self.others.items())
        yield from (("trackers", tracker) for tracker in self.trackers)

    def versions(self) -> dict[str, str]:
        """Distribution -> version, of CoreRL and of the plugins whose parts change the numbers of a run."""
        owners = [part.entry.owner for part in (self.strategy, *self.others.values())]
        return {"corerl": __version__} | {owner.distribution: owner.version for owner in owners}


@dataclass(frozen=True)
class Plan:
    """What a training is about to do.

    Attributes:
        checkpoint: the one that it resumes, or None.
        folder: of the run.
        run_ids: of its trackers.
        digests: of what it reads (:mod:`corerl.checkpoint.identity`).
    """

    config: SupervisedConfig
    parts: Parts
    plugins: Plugins
    task: Task
    tokenizer: ChatTokenizer
    train: Rows
    val: Rows | None
    sampler: PromptSampler
    folder: Path
    checkpoint: Checkpoint | None = None
    run_ids: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def total_steps(self) -> int:
        trainer = self.config.trainer
        return trainer.total_training_steps or trainer.total_epochs * self.sampler.steps_per_epoch

    def __str__(self) -> str:
        device = resolve_device(self.config.trainer.device, "trainer.device")
        size = self.config.data.train_batch_size
        return f"{self.total_steps} steps of {size} rows, strategy {self.parts.strategy.entry.name} on {device}"


def make_plan(config: SupervisedConfig, plugins: Plugins) -> Plan:
    """Read the tokenizer and the data; nothing is written.

    Raises:
        RequestError: the output folder, the device, a part, the tokenizer, the data or the checkpoint cannot be used.
    """
    folder = Path(config.output).expanduser()
    task = task_of(config, plugins.registries)
    check_output(config, folder, task.reference)
    resolve_device(config.trainer.device, "trainer.device")
    parts = select_parts(config, plugins, task)
    for wrong in violations(config, parts):
        raise wrong
    tokenizer = load_tokenizer(config.model, plugins)
    train = task.load(config.data.train_files, tokenizer)
    say(f"training data: {train.report}")
    val = task.load(config.data.val_files, tokenizer) if config.data.val_files else None
    if val:
        say(f"validation data: {val.report}")
    rows = {"data.train_files": train.report.digest, "data.val_files": val.report.digest if val else ""}
    read = digests(asdict(config), rows, tokenizer)
    sampler = PromptSampler(len(train.rows), config.data.train_batch_size, config.data.shuffle, config.trainer.seed)
    checkpoint = newest_whole(folder) if resumes(config, folder) else None
    if checkpoint is not None:
        checkpoint = compared(checkpoint, config, plugins, versions=parts.versions(), aliases={}, digests=read)
        with reading(checkpoint.path / "state.json"):
            sampler.load_state_dict(checkpoint.sampler)
        say(f"resuming {checkpoint.path}")
    return Plan(config, parts, plugins, task, tokenizer, train, val, sampler, folder, checkpoint, digests=read)


def select_parts(config: SupervisedConfig, plugins: Plugins, task: Task) -> Parts:
    """The parts that the config selects.

    Raises:
        ConfigError: an option is wrong.
        UnknownNameError, PluginError: as for :meth:`corerl.registry.Registry.select`.
    """
    registries, runtime = plugins.registries, config.runtime
    loggers = enumerate(config.tracking.loggers)
    return Parts(
        registries.training_strategies.select(config.trainer.strategy, "trainer.strategy"),
        registries.runtimes.select_named(
            runtime.name, runtime.options, name_key="runtime.name", options_key="runtime.options"
        ),
        tuple(registries.trackers.select(each, f"tracking.loggers[{number}]") for number, each in loggers),
        task.parts,
    )


def violations(config: SupervisedConfig, parts: Parts) -> Iterator[RequestError]:
    """The errors of the config that a training by reinforcement learning has, too."""
    yield from overrides.violations(config.model)
    actor = ActorConfig(strategy=config.trainer.strategy, device=config.trainer.device, optim=config.optim)
    same = TrainConfig(model=config.model, actor=actor, runtime=config.runtime, tracking=config.tracking)
    for error in (*_of_optimizer(same, parts), *_of_options(same, parts)):
        if isinstance(error, ConfigError):
            message = str(error).removeprefix(f"{error.key}: ")
            yield ConfigError(_own_keys(error.key), _own_keys(message))
        else:
            yield error


def _of_optimizer(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    alike: Any = SimpleNamespace(strategy=parts.strategy, critic_strategy=None)
    yield from optimizer_violations(config, alike)


def _of_options(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    trackers = {f"tracking.loggers[{number}]": part for number, part in enumerate(parts.trackers)}
    for key, part in {"actor.strategy": parts.strategy, "runtime.options": parts.runtime, **trackers}.items():
        if isinstance(part.options, CheckedOptions):
            try:
                part.options.check(key, config)
            except RequestError as error:
                yield error


def _own_keys(text: str) -> str:
    """A message of a training config with the keys of this one."""
    return text.replace("actor.optim", "optim").replace("actor.", "trainer.")


def resumes(config: SupervisedConfig, folder: Path) -> bool:
    """Whether the output folder holds a run without its model, which goes on."""
    is_unfinished = (folder / "config.yaml").is_file() and not (folder / "config.json").is_file()
    return is_unfinished and config.trainer.resume_mode == "auto"


def check_output(config: SupervisedConfig, folder: Path, reference: str | None) -> None:
    """Raise ConfigError if the output folder cannot be used."""
    model, data = config.model, config.data
    for read in (model.path, model.tokenizer_path, reference, *data.train_files, *data.val_files):
        if read and folder.resolve() in (path := Path(read).expanduser().resolve(), *path.parents):
            raise ConfigError("output", f"{folder} holds {read}, which this run reads: name another folder")
    if folder.exists() and not resumes(config, folder):
        if not config.overwrite:
            raise ConfigError("output", f"{folder} already exists; overwrite=true replaces it")
        if not (folder / "config.json").is_file() and not (folder / "config.yaml").is_file():
            raise ConfigError("output", f"{folder} is not a model folder (it has no config.json) and is not replaced")
    require_writable(folder if folder.is_dir() else folder.parent, "output")
