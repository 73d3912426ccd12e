"""The commands beside ``corerl train``; live view, notices, records of a run, best@k and the report of a training."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corerl import Register, hookimpl
from corerl.contracts.kinds import Kind

if TYPE_CHECKING:
    from corerl.batch.rollouts import Rollouts
    from corerl.checkpoint.resume import Checkpoint
    from corerl.contracts.commands import Command
    from corerl.contracts.config import TrainConfig
    from corerl.contracts.evaluations import ValidationSample
    from corerl.contracts.experience import Experience, RowNumbers
    from corerl.contracts.reward_managers import RewardResult
    from corerl.contracts.tokenizers import ChatTokenizer
    from corerl.contracts.trackers import TrackerFactory
    from corerl.data.prompts import PromptDataset
    from corerl.data.sampler import PromptSampler
    from corerl.registry.parts import Parts
    from corerl.rollout.scored import FinishedGroup
    from corerl.trainer.run import Run
    from corerl_tools.samplers.contract import PromptOrder


@hookimpl
def add_kinds(add: Callable[[Kind], None]) -> None:
    add(Kind("dataset_preparers", "dataset preparer", "corerl_tools.prepare.contract:DatasetPreparer"))
    add(Kind("samplers", "sampler", "corerl_tools.samplers.contract:PromptOrder", "data.sampler"))


@hookimpl
def register_samplers(register: "Register[PromptOrder]") -> None:
    register(
        "mixture",
        "corerl_tools.samplers.mixture:mixture",
        options="corerl_tools.samplers.mixture:MixtureOptions",
        summary="data sources in the shares of their weights",
    )
    register(
        "curriculum",
        "corerl_tools.samplers.curriculum:curriculum",
        options="corerl_tools.samplers.curriculum:CurriculumOptions",
        summary="prompts by a number of their extra_info",
    )


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register("check", "corerl_tools.check.command:check", summary="Find the errors of a training before it starts.")
    register("doctor", "corerl_tools.check.doctor:doctor", summary="Describe this environment, for a bug report.")
    register(
        "prepare", "corerl_tools.prepare.command:prepare", summary="Write training files from a published data set."
    )
    register("generate", "corerl_tools.generate.command:generate", summary="Sample responses to the prompts of a file.")
    register("score", "corerl_tools.score.command:score", summary="Score responses again, and compare with labels.")
    register("eval", "corerl_tools.evaluate:evaluate", summary="Print mean@n, pass@k, maj@k and best@k of responses.")
    register(
        "data.inspect",
        "corerl_tools.data_files.command:inspect",
        summary="Print the contents and the defects of data files.",
    )
    register(
        "export",
        "corerl_tools.export.command:export",
        summary="Convert a checkpoint to a Hugging Face model folder.",
    )
    register(
        "report",
        "corerl_tools.report.command:report",
        summary="Write one page of runs: curves, timing, samples, config.",
    )
    register(
        "rollouts.show",
        "corerl_tools.episodes.command:show",
        summary="Print sample rollouts as conversations: turns, tools, branches, times.",
    )
    register("runs", "corerl_tools.runs:runs", summary="List runs: state, step, last reward, age.")
    register(
        "config.show", "corerl_tools.config_show:show", summary="Show a training configuration with help of each key."
    )
    register(
        "plugins.list", "corerl_tools.plugin_lists:list_", summary="List plugins and every registered name by kind."
    )
    register("plugins.show", "corerl_tools.plugin_lists:show", summary="Show a plugin, or everything about a name.")
    register(
        "plugins.trace", "corerl_tools.plugin_lists:trace", summary="Show the hooks of plugins, and times of import."
    )


@hookimpl
def register_trackers(register: "Register[TrackerFactory]") -> None:
    register(
        "console",
        "corerl_tools.live.console:LiveConsole",
        summary="a live view on a terminal, otherwise a line a step",
        override=True,
    )


@hookimpl
def batch_scored(
    run: "Run",
    step: int,
    results: "Sequence[RewardResult]",
    rollouts: "Rollouts | None",
    experience: "RowNumbers | None",
) -> None:
    from corerl_tools.score_notices import of_run

    notices = of_run(run)
    if rollouts is not None and experience is not None:
        notices.print(step, rollouts, results, experience)
    else:
        notices.print_errors(f"step {step}, evaluation", results)


@hookimpl
def training_finished(folder: Path) -> None:
    from corerl_tools.report.command import make_report

    make_report([folder])


@hookimpl
def validation_metrics(samples: "Sequence[ValidationSample]", n: int) -> Mapping[str, float]:
    from corerl_tools.evaluation.validation import of_several

    return of_several(samples) if n > 1 else {}


@hookimpl
def write_rollouts(
    path: Path,
    rollouts: "Rollouts",
    results: "Sequence[RewardResult]",
    experience: "Experience | None",
    tokenizer: "ChatTokenizer",
    token_rows: int,
) -> bool:
    from corerl_tools.episodes import timeline
    from corerl_tools.evaluation import samples

    tokens = None if experience is None else samples.TokenColumns(experience, tokenizer, token_rows)
    samples.write_rollouts(path, rollouts, results, tokens)
    if experience is not None:  # of a step, path is RUN/rollouts/step_N.parquet
        timeline.write_timeline(timeline.path_of(path), rollouts, results)
    return True


@hookimpl
def remedy(error: BaseException) -> str | None:
    from corerl_check.problems import PAGE, problem_of

    problem = problem_of(f"{type(error).__name__}: {error}")
    if problem is not None:
        return f"{problem.remedy} (see '{problem.name}' in {PAGE})"
    from corerl_tools.foreign_code import raised_there

    return raised_there(error)


@hookimpl
def check_requirements(config: "TrainConfig", parts: "Parts") -> None:
    if config.trainer.remote_dir is not None:
        from corerl_tools.remote import places

        places.check(config.trainer.remote_dir)


@hookimpl
def checkpoint_saved(run: "Run", step: int, path: Path) -> None:
    from corerl.contracts.config import TrainConfig

    if isinstance(run.config, TrainConfig) and run.config.trainer.remote_dir is not None:
        from corerl_tools.remote import copies

        copies.of_run(run).begin(path)


@hookimpl
def run_ended(run: "Run", error: BaseException | None) -> None:
    from corerl.errors import LostError

    if not isinstance(error, LostError):  # a run that is started again goes on at once
        from corerl_tools.remote import copies

        copies.ended(run, error)


@hookimpl
def fetch_checkpoint(config: "TrainConfig", total_steps: int) -> Path | None:
    if config.trainer.remote_dir is None and "://" not in config.trainer.resume_mode:
        return None
    from corerl_tools.remote.fetching import fetch

    return fetch(config, total_steps)


@hookimpl
def run_started(run: "Run") -> None:
    from corerl_tools import parts_used

    parts_used.write(run.parts, run.folder)


@hookimpl
def check_resumed(
    checkpoint: "Checkpoint",
    config: "TrainConfig",
    versions: Mapping[str, str],
    aliases: Mapping[str, str],
    digests: Mapping[str, str],
) -> list[str]:
    from corerl.contracts.config import TrainConfig
    from corerl_tools.resumed import check_same
    from corerl_torch.contents import check_checkpoint

    left = check_same(checkpoint, config, versions, aliases, digests)
    if isinstance(config, TrainConfig):  # configs of other commands have no such parts
        check_checkpoint(checkpoint.path, config)
    return left


@hookimpl
def write_groups(folder: Path, groups: "Sequence[FinishedGroup]") -> bool:
    from corerl_tools import finished_groups

    finished_groups.write_groups(folder / finished_groups.FILE, groups)
    return True


@hookimpl
def read_groups(folder: Path, prompts: "PromptDataset", sampler: "PromptSampler") -> "list[FinishedGroup]":
    from corerl_tools import finished_groups

    return finished_groups.read_groups(folder / finished_groups.FILE, prompts, sampler)
