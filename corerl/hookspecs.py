"""Every hook that a plugin may implement.

A plugin is a module, usually ``plugin.py``, whose functions are marked ``@hookimpl`` and named as below. It imports
nothing but ``corerl``: heavy parts are named ``"package.module:attribute"`` and imported when a config selects them.
A distribution announces the module by an entry point in the group ``corerl``, named like the distribution::

    [project.entry-points.corerl]
    acme-rewards = "acme_rewards.plugin"

The ``register_…`` hooks run once, at start-up, in every process. Each is handed a :class:`Register`; the life-cycle
hooks run in the controller, between steps. An implementation may leave out arguments that it does not use.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pluggy

if TYPE_CHECKING:
    from corerl.contracts.advantage_estimators import AdvantageEstimator
    from corerl.contracts.batch_filters import BatchFilter
    from corerl.contracts.commands import Command
    from corerl.contracts.config import ModelConfig, TrainConfig
    from corerl.contracts.environments import EnvironmentFactory
    from corerl.contracts.evaluations import ValidationSample
    from corerl.contracts.experience import Experience
    from corerl.contracts.kinds import Kind
    from corerl.contracts.kl_controllers import KLController
    from corerl.contracts.kl_types import KLType
    from corerl.contracts.policy_losses import PolicyLoss
    from corerl.contracts.presets import Preset
    from corerl.contracts.reward_managers import RewardManagerFactory, RewardResult
    from corerl.contracts.rollout_backends import RolloutBackendFactory
    from corerl.contracts.rollout_correctors import RolloutCorrector
    from corerl.contracts.runs import Run
    from corerl.contracts.runtimes import RuntimeFactory
    from corerl.contracts.scorers import Scorer
    from corerl.contracts.throughput import ModelShape
    from corerl.contracts.tokenizers import ChatTokenizer
    from corerl.contracts.trackers import TrackerFactory
    from corerl.contracts.training_strategies import TrainingStrategyFactory
    from corerl.contracts.value_losses import ValueLoss
    from corerl.errors import RequestError

hookspec = pluggy.HookspecMarker("corerl")
hookimpl = pluggy.HookimplMarker("corerl")

T_contra = TypeVar("T_contra", contravariant=True)


class Register(Protocol, Generic[T_contra]):
    """Registers one name; the arguments are the fields of :class:`corerl.registry.Entry`.

    ``needs`` and ``facts`` are those that the kind declares (:class:`corerl.contracts.kinds.Kind`), such as
    ``needs={"groups"}`` of an advantage estimator and ``data_sources=["acme/*"]`` of a scorer.
    """

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
def register_advantage_estimators(register: "Register[AdvantageEstimator]") -> None:
    """Register advantage estimators (:mod:`corerl.contracts.advantage_estimators`).

    Example::

        from corerl import hookimpl
        from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages

        def raw(inputs: AdvantageInputs) -> Advantages:
            scores = inputs.rewards.sum(dim=1, keepdim=True) * inputs.response_mask
            return Advantages(scores, scores)

        @hookimpl
        def register_advantage_estimators(register):
            register("raw", raw, summary="the score itself, without a baseline")
    """


@hookspec
def register_policy_losses(register: "Register[PolicyLoss]") -> None:
    """Register policy losses (:mod:`corerl.contracts.policy_losses`).

    Example::

        from corerl import hookimpl
        from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs

        def reinforce(inputs: PolicyLossInputs) -> LossOutput:
            return LossOutput(-inputs.advantages * inputs.log_probs)

        @hookimpl
        def register_policy_losses(register):
            register("plain_reinforce", reinforce, summary="-A log pi")
    """


@hookspec
def register_kl_types(register: "Register[KLType]") -> None:
    """Register KL types (:mod:`corerl.contracts.kl_types`).

    Example::

        from corerl import hookimpl

        def k1(log_probs, ref_log_probs):
            return log_probs - ref_log_probs

        @hookimpl
        def register_kl_types(register):
            register("my_k1", k1, summary="log pi - log pi_ref")
    """


@hookspec
def register_kl_controllers(register: "Register[KLController]") -> None:
    """Register KL controllers (:mod:`corerl.contracts.kl_controllers`).

    Example::

        from corerl import hookimpl

        def halving(coef, kl, responses):
            return coef / 2

        @hookimpl
        def register_kl_controllers(register):
            register("halving", halving, summary="half of the penalty, step by step")
    """


@hookspec
def register_value_losses(register: "Register[ValueLoss]") -> None:
    """Register value losses (:mod:`corerl.contracts.value_losses`).

    Example::

        from corerl import hookimpl
        from corerl.contracts.value_losses import LossOutput, ValueLossInputs

        def absolute(inputs: ValueLossInputs) -> LossOutput:
            return LossOutput((inputs.values - inputs.returns).abs())

        @hookimpl
        def register_value_losses(register):
            register("absolute", absolute, summary="|V - R|")
    """


@hookspec
def register_batch_filters(register: "Register[BatchFilter]") -> None:
    """Register batch filters (:mod:`corerl.contracts.batch_filters`).

    Example::

        from corerl import hookimpl
        from corerl.contracts.batch_filters import FilterInputs

        def all_scored(inputs: FilterInputs):
            failed = inputs.group_ids[~inputs.scored]
            return (inputs.group_ids[:, None] != failed).all(dim=1)

        @hookimpl
        def register_batch_filters(register):
            register("all_scored", all_scored, summary="groups in which every response has a score")
    """


@hookspec
def register_presets(register: "Register[Preset]") -> None:
    """Register presets (:mod:`corerl.contracts.presets`), for ``preset: NAME`` in a config.

    Example::

        from corerl import hookimpl

        def cautious():
            policy_loss = {"name": "vanilla", "clip_ratio_low": 0.1, "clip_ratio_high": 0.1}
            return {"actor": {"optim": {"lr": 1e-7}, "policy_loss": policy_loss}}

        @hookimpl
        def register_presets(register):
            register("cautious", cautious, summary="small steps")
    """


@hookspec
def register_reward_managers(register: "Register[RewardManagerFactory]") -> None:
    """Register reward managers (:mod:`corerl.contracts.reward_managers`).

    Example::

        from corerl import hookimpl
        from corerl.contracts.reward_managers import RewardResult

        class ShortIsGood:
            def __init__(self, scorers, *, num_workers, timeout):
                pass

            def score(self, requests):
                return [RewardResult(score=1.0 / (1 + request.response_length)) for request in requests]

            def close(self):
                pass

        @hookimpl
        def register_reward_managers(register):
            register("short_is_good", ShortIsGood, summary="1 / (1 + tokens)")
    """


@hookspec
def register_scorers(register: "Register[Scorer]") -> None:
    """Register scorers (:mod:`corerl.contracts.scorers`).

    ``data_sources`` lists the values of the column ``data_source``, or patterns such as ``aime*``, that select this
    scorer by themselves.

    Example::

        from corerl import hookimpl

        def exact(response, ground_truth, data_source, extra_info):
            return float(response.strip() == ground_truth)

        @hookimpl
        def register_scorers(register):
            register("exact", exact, summary="the response is the answer", data_sources=("acme/trivia",))
    """


@hookspec
def register_rollout_backends(register: "Register[RolloutBackendFactory]") -> None:
    """Register rollout backends (:mod:`corerl.contracts.rollout_backends`).

    Example::

        from dataclasses import dataclass

        from corerl import hookimpl, option

        @dataclass
        class AcmeOptions:
            port: int = option(8000, "of the engine's server", ge=1, le=65535)

        @hookimpl
        def register_rollout_backends(register):
            register("acme", "acme_engine.backend:AcmeBackend", options=AcmeOptions, summary="the Acme engine")
    """


@hookspec
def register_environments(register: "Register[EnvironmentFactory]") -> None:
    """Register environments (:mod:`corerl.contracts.environments`), for responses in several turns.

    Example::

        from corerl import hookimpl
        from corerl.contracts.environments import Start, Turn

        class SecondThoughts:
            def reset(self, task, seed):
                return Start(state=[])

            def step(self, state, response):
                state.append(response)
                if len(state) == 2:
                    return Turn(done=True, reward=float(state[0] != state[1]))
                return Turn([{"role": "user", "content": "Are you sure?"}])

            def close(self):
                pass

        @hookimpl
        def register_environments(register):
            register("second_thoughts", SecondThoughts, summary="asks once whether the policy is sure")
    """


@hookspec
def register_training_strategies(register: "Register[TrainingStrategyFactory]") -> None:
    """Register training strategies (:mod:`corerl.contracts.training_strategies`).

    Example::

        from corerl import hookimpl

        @hookimpl
        def register_training_strategies(register):
            register("acme", "acme_trainer.strategy:AcmeStrategy", summary="the Acme trainer")
    """


@hookspec
def register_runtimes(register: "Register[RuntimeFactory]") -> None:
    """Register runtimes (:mod:`corerl.contracts.runtimes`).

    Example::

        from corerl import hookimpl

        @hookimpl
        def register_runtimes(register):
            register("slurm", "acme_slurm.runtime:SlurmRuntime", summary="one Slurm step a worker")
    """


@hookspec
def register_trackers(register: "Register[TrackerFactory]") -> None:
    """Register trackers (:mod:`corerl.contracts.trackers`).

    Example::

        from corerl import hookimpl

        class CsvTracker:
            def __init__(self, run):
                self.file = (run.folder / "reward.csv").open("w")

            def log(self, metrics, step):
                self.file.write(f"{step},{metrics.get('critic/score/mean', '')}\\n")

            def close(self):
                self.file.close()

        @hookimpl
        def register_trackers(register):
            register("csv", CsvTracker, summary="step and mean score in reward.csv")
    """


@hookspec
def register_commands(register: "Register[Command]") -> None:
    """Register ``corerl`` sub-commands: click commands, imported only when called.

    A dot in a name makes words of it: ``acme.login`` is called as ``corerl acme login``.

    Example::

        from corerl import hookimpl

        @hookimpl
        def register_commands(register):
            register("acme-login", "acme.cli:login", summary="Store a token for the Acme cluster.")
    """


@hookspec
def add_kinds(add: "Callable[[Kind], None]") -> None:
    """Add kinds of parts (:mod:`corerl.contracts.kinds`). Each gets a registry and a hook ``register_<registry>``.

    The plugin finds its parts by ``load_plugins().registries.samplers`` (:func:`corerl.plugins.load_plugins`).

    Example::

        from typing import Protocol

        from corerl import hookimpl
        from corerl.contracts.kinds import Kind

        class Sampler(Protocol):
            def __call__(self, size: int) -> list[int]: ...

        def first(size):
            return list(range(size))

        @hookimpl
        def add_kinds(add):
            add(Kind("samplers", "sampler", Sampler))

        @hookimpl
        def register_samplers(register):
            register("first", first, summary="rows in their order")
    """


@hookspec
def config_aliases() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Other spellings of keys of a training config: alias -> key.

    A key may be an option of the part that another key selects. An alias is replaced before the config is checked; an
    error names both if alias and key have different values.

    Example::

        from corerl import hookimpl

        @hookimpl
        def config_aliases():
            return {"data.batch_size": "data.train_batch_size", "actor.clip_high": "actor.policy_loss.clip_ratio_high"}
    """


@hookspec(firstresult=True)
def explain_config_key(key: str) -> str | None:
    """The remedy for a key that a training config does not have, as the end of the sentence "unknown key; …".

    Return None for a key that you do not know: then the error names the nearest keys.

    Example::

        from corerl import hookimpl

        @hookimpl
        def explain_config_key(key):
            return "the number of GPUs is runtime.n_gpus_per_node" if key == "trainer.gpus" else None
    """


@hookspec
def run_started(run: "Run") -> None:
    """A run has its folder and its parts, and no step was taken yet.

    Example::

        from corerl import hookimpl

        @hookimpl
        def run_started(run):
            print(f"writing to {run.folder}")
    """


@hookspec
def step_ended(run: "Run", step: int, metrics: Mapping[str, float]) -> None:
    """A training step (1, 2, …) is complete, its metrics logged.

    Example::

        from corerl import hookimpl

        @hookimpl
        def step_ended(step, metrics):
            if metrics["response_length/clip_ratio"] > 0.5:
                print(f"step {step}: more than half of the responses were cut off")
    """


@hookspec
def checkpoint_saved(run: "Run", step: int, path: Path) -> None:
    """A checkpoint is complete on disk.

    Example::

        from corerl import hookimpl

        @hookimpl
        def checkpoint_saved(step, path):
            print(f"upload {path}")
    """


@hookspec
def run_ended(run: "Run", error: BaseException | None) -> None:
    """The run is over; ``error`` is what ended it early, or None.

    Example::

        from corerl import hookimpl

        @hookimpl
        def run_ended(run, error):
            print("failed" if error else "done", run.folder)
    """


@hookspec
def config_errors(config: "TrainConfig") -> "Iterable[RequestError] | None":
    """Yield an error for every rule between keys that does not hold.

    Example::

        from corerl import hookimpl
        from corerl.errors import ConfigError

        @hookimpl
        def config_errors(config):
            if config.trainer.total_epochs > 100:
                yield ConfigError("trainer.total_epochs", "is more than the 100 that the Acme cluster allows")
    """


@hookspec(firstresult=True)
def make_rollout_corrector(config: "TrainConfig", shape: "ModelShape") -> "RolloutCorrector | None":
    """Make the corrector of a run (:mod:`corerl.contracts.rollout_correctors`) for a model of this shape.

    Example::

        from corerl import hookimpl

        @hookimpl
        def make_rollout_corrector(config, shape):
            from acme.correction import AcmeCorrector

            return AcmeCorrector(config.algorithm.rollout_correction)
    """


@hookspec(firstresult=True)
def load_tokenizer(model: "ModelConfig") -> "ChatTokenizer | None":
    """Load the tokenizer of a model (:mod:`corerl.contracts.tokenizers`); None for models of other plugins.

    Example::

        from corerl import hookimpl

        @hookimpl
        def load_tokenizer(model):
            if model.path.startswith("acme://"):
                from acme.tokenizer import AcmeTokenizer

                return AcmeTokenizer(model.path)
    """


@hookspec
def step_metrics(
    experience: "Experience",
    results: "Sequence[RewardResult]",
    truncated: Sequence[bool],
    max_prompt_length: int,
    data_parallel_size: int,
) -> Mapping[str, float] | None:
    """Metrics of the batch of a training step; ``truncated``: of each response, whether it ended by its length.

    Example::

        from corerl import hookimpl

        @hookimpl
        def step_metrics(truncated):
            return {"acme/complete": float(len(truncated) - sum(truncated))}
    """


@hookspec
def time_metrics(
    experience: "Experience",
    seconds: Mapping[str, float],
    background: Mapping[str, float],
    shape: "ModelShape",
    passes: int,
) -> Mapping[str, float] | None:
    """Metrics of the time of a training step, in which an update goes ``passes`` times through the batch.

    ``seconds``: part -> seconds, of all of it as ``step``; ``background``: of parts beside the step.

    Example::

        from corerl import hookimpl

        @hookimpl
        def time_metrics(seconds):
            return {"acme/minutes": seconds["step"] / 60}
    """


@hookspec
def validation_metrics(samples: "Sequence[ValidationSample]", n: int) -> Mapping[str, float] | None:
    """Further metrics of an evaluation with ``n`` responses to each prompt.

    Example::

        from corerl import hookimpl

        @hookimpl
        def validation_metrics(samples):
            return {"val-aux/solved": float(sum(sample.score == 1 for sample in samples))}
    """


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

    ``rollouts`` are :class:`corerl.batch.rollouts.Rollouts`. With an experience, the tokens of the first ``token_rows``
    responses are written too; the tokenizer is a :class:`corerl.contracts.tokenizers.ChatTokenizer`.

    Example::

        from corerl import hookimpl

        @hookimpl
        def write_rollouts(path, rollouts, results):
            path.with_suffix(".txt").write_text("\\n".join(rollouts.responses))
            return True
    """


@hookspec(firstresult=True)
def remedy(error: BaseException) -> str | None:
    """A sentence of help for an error that ended a command and is not CoreRL's own; None if there is none.

    Example::

        from corerl import hookimpl

        @hookimpl
        def remedy(error):
            return "Log in by `corerl acme login`." if "401" in str(error) else None
    """


def registration_hook(registry_name: str) -> str:
    """The name of the hook that fills a registry.

    >>> registration_hook("kl_types")
    'register_kl_types'
    """
    return f"register_{registry_name}"


__all__: list[Any] = ["Register", "hookimpl", "hookspec", "registration_hook"]


@hookspec
def training_finished(folder: Path) -> None:
    """`corerl train` has finished: the run is done, and its process is about to end.

    Example::

        from corerl import hookimpl

        @hookimpl
        def training_finished(folder):
            print(f"see {folder}/metrics.jsonl")
    """
