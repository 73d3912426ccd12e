"""Every hook that a plugin may implement; docs/reference/hooks.md has an example of each.

A plugin is a module, usually ``plugin.py``, whose functions are marked ``@hookimpl`` and named as below. It imports
nothing but ``corerl``: heavy parts are named ``"package.module:attribute"`` and imported when a config selects them.
A distribution announces the module by an entry point in the group ``corerl``, named like the distribution::

    [project.entry-points.corerl]
    acme-rewards = "acme_rewards.plugin"

Each registry has a hook ``register_<registry>(register)``, which runs once, at start-up, in every process; its argument
is a :class:`Register`. The life-cycle hooks run in the controller, between steps. An implementation may leave out
arguments that it does not use.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pluggy

if TYPE_CHECKING:
    from corerl.contracts.agents import ChatFactory, Endpoint
    from corerl.contracts.annotators import Annotator, ModelRole
    from corerl.contracts.config import ModelConfig, TrainConfig
    from corerl.contracts.evaluations import Evaluation, ValidationSample
    from corerl.contracts.experience import Experience, RowNumbers
    from corerl.contracts.kinds import Kind
    from corerl.contracts.kl_controllers import KLPenalty
    from corerl.contracts.losses import Measure
    from corerl.contracts.objective import LossTerm
    from corerl.contracts.reward_managers import RewardResult
    from corerl.contracts.rollout_correctors import RolloutCorrector
    from corerl.contracts.runs import Restarts, Run
    from corerl.contracts.throughput import ModelShape
    from corerl.contracts.tokenizers import ChatTokenizer
    from corerl.errors import RequestError
    from corerl.registry.parts import Parts

hookspec = pluggy.HookspecMarker("corerl")
hookimpl = pluggy.HookimplMarker("corerl")

T_contra = TypeVar("T_contra", contravariant=True)


class Register(Protocol, Generic[T_contra]):
    """Registers one name; the arguments are the fields of :class:`corerl.registry.Entry`.

    ``needs`` and ``facts`` are those that the kind declares (:class:`corerl.contracts.kinds.Kind`), such as
    ``needs={"groups"}`` of an advantage estimator and ``data_sources=["acme/*"]`` of a scorer."""

    def __call__(
        self,
        name: str,
        target: T_contra | str,
        *,
        summary: str = "",
        options: type | str | None = None,
        override: bool = False,
        needs: Collection[str] = (),
        **facts: Any,
    ) -> None: ...


@hookspec
def add_kinds(add: "Callable[[Kind], None]") -> None:
    """Add kinds of parts (:mod:`corerl.contracts.kinds`). Each gets a registry and its hook.

    The plugin finds its parts by ``load_plugins().registries.samplers`` (:func:`corerl.plugins.load_plugins`)."""


@hookspec
def config_aliases() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Other spellings of keys of a training config: alias -> key.

    A key may be an option of the part that another key selects. An alias is replaced before the config is checked; an
    error names both if alias and key have different values."""


@hookspec(firstresult=True)
def read_config(
    file: Path | None, overrides: Sequence[str], preset: Mapping[str, Any], aliases: Mapping[str, str]
) -> dict[str, Any] | None:
    """Read a training config over the values of its preset, as nested plain values with keys for their aliases."""


@hookspec(firstresult=True)
def explain_config_key(key: str) -> str | None:
    """The remedy for a key that a training config does not have, as the end of the sentence "unknown key; …".

    Return None for a key that you do not know: then the error names the nearest keys."""


@hookspec
def run_started(run: "Run") -> None:
    """A run has its folder and its parts; no step is done."""


@hookspec
def around_step(run: "Run", step: int, workers: Mapping[str, Any]) -> AbstractContextManager[Any] | None:
    """Make a context that a training step (1, 2, …) runs in, or None.

    ``workers``: role -> its workers; ``workers["actor"].apply(function)`` calls ``function(worker)`` in each."""


@hookspec
def step_ended(run: "Run", step: int, metrics: Mapping[str, float]) -> None:
    """A training step (1, 2, …) is complete, its metrics logged."""


@hookspec
def batch_scored(
    run: "Run",
    step: int,
    results: "Sequence[RewardResult]",
    rollouts: Any,
    experience: "RowNumbers | None",
) -> None:
    """A step has trained on responses (:class:`corerl.batch.rollouts.Rollouts`) with these results.

    ``experience`` has the numbers of their rows. Of an evaluation after the step, rollouts and experience are None.
    """


@hookspec
def checkpoint_saved(run: "Run", step: int, path: Path) -> None:
    """A checkpoint is complete on disk."""


@hookspec
def run_ended(run: "Run", error: BaseException | None) -> None:
    """The run is over; ``error`` ended it early, or is None."""


@hookspec
def config_errors(config: "TrainConfig", parts: "Parts") -> "Iterable[RequestError] | None":
    """Yield an error for each broken rule between keys; the parts are those that the keys select."""


@hookspec
def check_requirements(config: "TrainConfig", parts: "Parts") -> None:
    """Raise RequestError if this machine lacks something that the run needs; data and models are not yet read."""


@hookspec(firstresult=True)
def make_rollout_corrector(config: "TrainConfig", shape: "ModelShape") -> "RolloutCorrector | None":
    """Make the corrector of a run (:mod:`corerl.contracts.rollout_correctors`) for a model of this shape."""


@hookspec
def loss_terms(config: "TrainConfig", parts: "Parts") -> "Iterable[LossTerm] | None":
    """Yield further terms of the policy's loss (:class:`corerl.contracts.objective.LossTerm`), in each worker."""


@hookspec(firstresult=True)
def make_restarts(plan: Any, stopping: Any, stack: ExitStack) -> "Restarts | None":
    """Make what starts the lost workers of a run again (:mod:`corerl.contracts.runs`); ``stack`` ends with the run.

    The arguments are :class:`corerl.trainer.plan.Plan` and :class:`corerl.trainer.stopping.Stopping`."""


@hookspec(firstresult=True)
def make_kl_penalty(plan: Any, models: Any) -> "KLPenalty | None":
    """Make the KL penalty in the reward (:mod:`corerl.contracts.kl_controllers`) of a run that has one.

    The arguments are :class:`corerl.trainer.plan.Plan` and :class:`corerl.trainer.models.Models`."""


@hookspec
def model_roles(config: "TrainConfig", parts: "Parts") -> "Iterable[ModelRole] | None":
    """Yield further models of a run (:mod:`corerl.contracts.annotators`), such as teachers."""


@hookspec
def make_annotator(plan: Any, models: Any) -> "Annotator | None":
    """Make what adds columns to each mini-batch just before an update (:mod:`corerl.contracts.annotators`), or None.

    The arguments are :class:`corerl.trainer.plan.Plan` and :class:`corerl.trainer.models.Models`."""


@hookspec(firstresult=True)
def make_batch(
    plan: Any, runtime: Any, folder: Path, models: Any, corrector: Any, annotators: Sequence[Any]
) -> Any | None:
    """Make what holds the rows of each step in processes of the runtime; None: the controller holds them.

    It is called as :class:`corerl.trainer.batch.Batch`, and its methods may have one ``submit``, which begins the call
    (:class:`corerl.contracts.dispatch.Future`). The arguments are :class:`corerl.trainer.plan.Plan`, the runtime, the
    run's folder, :class:`corerl.trainer.models.Models`, the corrector and the annotators."""


@hookspec(firstresult=True)
def make_early_reference(plan: Any, models: Any, stack: ExitStack) -> Any | None:
    """Make the :class:`corerl.trainer.models.EarlyReference`, which reads groups while others generate
    (``ref.overlap_parts``); None: the reference reads each step after generation.

    The arguments are :class:`corerl.trainer.plan.Plan`, :class:`corerl.trainer.models.Models` and the stack that ends
    with the run's workers."""


@hookspec(firstresult=True)
def make_evaluation(run: "Run", plan: Any, stream: Any, records: Any) -> "Evaluation | None":
    """Make the evaluation of a run (:mod:`corerl.contracts.evaluations`) on ``plan.val_prompts``.

    The arguments are :class:`corerl.trainer.plan.Plan`, :class:`corerl.rollout.stream.Stream`, which plays and scores,
    and :class:`corerl.trainer.records.Records`."""


@hookspec
def check_resumed(
    checkpoint: Any,
    config: "TrainConfig",
    versions: Mapping[str, str],
    aliases: Mapping[str, str],
    digests: Mapping[str, str],
) -> "Iterable[str] | None":
    """Raise ConfigError if a run must not resume a checkpoint (:class:`corerl.checkpoint.resume.Checkpoint`).

    Return the parts of its state that the run does not take: see :meth:`Checkpoint.without`. ``config``, ``versions``,
    distribution -> version, and ``digests`` (:mod:`corerl.checkpoint.identity`) are those of the run; ``aliases``: of
    all plugins."""


@hookspec(firstresult=True)
def fetch_checkpoint(config: "TrainConfig", total_steps: int) -> Path | None:
    """Bring the checkpoint that ``trainer.resume_mode`` selects to this machine; its folder, or that of its run."""


@hookspec(firstresult=True)
def write_groups(folder: Path, groups: Sequence[Any]) -> bool | None:
    """Write finished groups (:class:`corerl.rollout.scored.FinishedGroup`) into the folder of a checkpoint.

    They wait to be trained. Return True if they are written; without them a resumed run plays them anew."""


@hookspec(firstresult=True)
def read_groups(folder: Path, prompts: Sequence[Any], sampler: Any) -> list[Any] | None:
    """Read the groups of :func:`write_groups`, by number; [] if the folder has none.

    ``prompts``: the training prompts; ``sampler``: their order (:class:`corerl.data.sampler.PromptSampler`), in the
    checkpoint's state. Raise DataError if a group is of another prompt than the one at its place."""


@hookspec(firstresult=True)
def load_tokenizer(model: "ModelConfig") -> "ChatTokenizer | None":
    """Load the tokenizer of a model (:mod:`corerl.contracts.tokenizers`); None for models of other plugins."""


@hookspec
def examine_tokenizer(config: "TrainConfig", tokenizer: "ChatTokenizer") -> "Iterable[Any] | None":
    """Yield findings (``corerl_check.Finding``) about the tokenizer and its chat template, for `corerl check`."""


@hookspec(firstresult=True)
def make_chats(config: "TrainConfig", tokenizer: "ChatTokenizer") -> "ChatFactory | None":
    """Make what turns the chats of agents into tokens (:class:`corerl.contracts.agents.ChatFactory`)."""


@hookspec(firstresult=True)
def make_endpoint(config: "TrainConfig", tokenizer: "ChatTokenizer") -> "Endpoint | None":
    """Make the endpoint that serves the models of episodes (:class:`corerl.contracts.agents.Endpoint`)."""


@hookspec
def step_metrics(
    experience: "Experience",
    results: "Sequence[RewardResult]",
    truncated: Sequence[bool],
    max_prompt_length: int,
    responses: int,
) -> "Mapping[str, Measure | float] | None":
    """Metrics of the batch of a training step; ``truncated``: of each response, whether it ended by its length.

    The arguments are those of a part of the step's batch, which has ``responses``, or of all. A mean is a
    :class:`corerl.contracts.losses.Mean`, an extreme or a number of things a ``Combined``: those of parts add up. A
    float is of all. Called in the process that has the part, the controller or a worker."""


@hookspec
def time_metrics(
    experience: "RowNumbers",
    seconds: Mapping[str, float],
    background: Mapping[str, float],
    shape: "ModelShape",
    passes: int,
) -> Mapping[str, float] | None:
    """Metrics of the time of a training step, in which an update goes ``passes`` times through the rows.

    ``seconds``: part -> seconds, of all of it as ``step``; ``background``: of parts beside the step.
    """


@hookspec
def validation_metrics(samples: "Sequence[ValidationSample]", n: int) -> Mapping[str, float] | None:
    """Further metrics of an evaluation with ``n`` responses to each prompt."""


@hookspec(firstresult=True)
def write_rollouts(
    path: Path,
    rollouts: Any,
    results: "Sequence[RewardResult]",
    experience: "Experience | None",
    tokenizer: Any,
    token_rows: int,
) -> bool | None:
    """Write sample rollouts to a file, one row a response; True if it is written.

    ``rollouts`` are :class:`corerl.batch.rollouts.Rollouts`. An experience has the first ``token_rows`` responses
    and their branches, whose tokens are written too; the tokenizer is a
    :class:`corerl.contracts.tokenizers.ChatTokenizer`.
    """


@hookspec(firstresult=True)
def remedy(error: BaseException) -> str | None:
    """A sentence of help, or None, for an error of a command that is not CoreRL's own."""


@hookspec
def training_finished(folder: Path) -> None:
    """The run of `corerl train` is done; its process is about to end."""


def registration_hook(registry_name: str) -> str:
    """The name of the hook that fills a registry.

    >>> registration_hook("kl_types")
    'register_kl_types'
    """
    return f"register_{registry_name}"


__all__: list[Any] = ["Register", "hookimpl", "hookspec", "registration_hook"]
