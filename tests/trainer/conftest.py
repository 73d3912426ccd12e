"""Batches by hand, a config whose parts are made up, and a trainer whose workers are."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from corerl.contracts.advantage_estimators import Advantages
from corerl.contracts.config import ModelConfig, PluginsConfig, RolloutCorrectionConfig, TrainConfig
from corerl.contracts.losses import Mean
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs
from corerl.errors import EngineDeadError
from corerl.plugins import load_plugins
from corerl.registry.parts import resolve_parts
from corerl.rollout.stream import StepGroups
from corerl.seeding import Seeds
from corerl.trainer.batch import Batch
from corerl.trainer.loop import Trainer
from corerl.trainer.models import Models
from corerl.trainer.nonfinite import NonFiniteGuard
from corerl.trainer.records import Records
from corerl.trainer.step import Step
from corerl.trainer.stopping import Stopping
from corerl.trainer.updates import Updates
from corerl_correction.corrector import ImportanceCorrector

PLUGIN = """
from corerl import hookimpl

def nothing(*arguments, **options):
    raise AssertionError("not called here")

@hookimpl
def register_advantage_estimators(register):
    register("mine", nothing)

@hookimpl
def register_policy_losses(register):
    register("mine", nothing)

@hookimpl
def register_training_strategies(register):
    register("mine", nothing)

@hookimpl
def register_rollout_backends(register):
    register("mine", nothing)

class Lengths:
    # scores a response by its length, where its scorer says 1, and remembers that it was closed

    closed = 0

    def __init__(self, scorers, *, num_workers, timeout):
        self.scorers, self.num_workers, self.timeout = scorers, num_workers, timeout

    def score(self, requests):
        from corerl.contracts.reward_managers import RewardResult

        return [
            RewardResult(
                self.scorers[each.data_source](each.response, each.ground_truth, each.data_source, each.extra_info)
                * len(each.response),
                {"limit": each.max_response_length},
            )
            for each in requests
        ]

    def close(self):
        Lengths.closed += 1

@hookimpl
def register_reward_managers(register):
    register("mine", Lengths)

def one(response, ground_truth, data_source, extra_info):
    return 1.0

@hookimpl
def register_scorers(register):
    register("one", one, data_sources=["acme/*"])
"""


@pytest.fixture
def made_up(tmp_path: Path, tiny_tokenizer_dir: Path) -> Callable[[], SimpleNamespace]:
    """``made_up()``: a config all of whose parts are ``mine``, of a file; its parts and plugins. No model is there."""
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)

    def make() -> SimpleNamespace:
        config = TrainConfig(model=ModelConfig(path=str(tiny_tokenizer_dir)), plugins=PluginsConfig(load=[str(file)]))
        config.algorithm.adv_estimator = config.actor.policy_loss = config.actor.strategy = "mine"
        config.rollout.name = config.reward.manager = "mine"
        config.actor.device, config.trainer.output_dir = "cpu", str(tmp_path / "runs")
        plugins = load_plugins((str(file),), ())
        return SimpleNamespace(config=config, plugins=plugins, parts=resolve_parts(config, plugins.registries))

    return make


class Worker:
    """A model that says -1, -2, -3, … of the batches that it is asked about; its updates count from 1."""

    def __init__(self, name, calls):
        self.name, self.calls, self.asked, self.updated, self.says = name, calls, [], [], {}

    def forward(self, batch, wanted):
        self.calls.append(f"{self.name}.forward")
        self.asked.append((sorted(batch.tensors()), list(wanted)))
        shape = batch.response_mask.shape
        return TokenOutputs(**{name: torch.full(shape, -float(len(self.asked))) for name in wanted})

    def update(self, mini_batch):
        self.calls.append(f"{self.name}.update")
        self.updated.append(mini_batch)
        number = len(self.updated)
        if number in self.says:
            raise self.says[number]
        return {"loss": Mean(float(number), 1.0)}

    def measured(self):
        return {"perf/max_memory_allocated_gb": 1.5}


class Devices:
    def __init__(self, calls):
        self.calls, self.fails = calls, ""

    def __getattr__(self, name):
        def move():
            self.calls.append(name)
            if self.fails == name:
                raise EngineDeadError(f"ended in {name}")

        return move


class Parts(SimpleNamespace):
    """Of an estimator and a KL loss with these needs, and a policy loss with these facts."""

    needs_ref_log_probs = True

    def __init__(self, needs, select_tokens=None, kl_loss=None, zero_at_zero_advantage=False, outputs_of_update=False):
        of_strategy = SimpleNamespace(outputs_of_update=outputs_of_update)
        facts = SimpleNamespace(select_tokens=select_tokens, zero_at_zero_advantage=zero_at_zero_advantage)
        super().__init__(
            adv_estimator=SimpleNamespace(entry=SimpleNamespace(needs=frozenset(needs))),
            strategy=SimpleNamespace(entry=SimpleNamespace(facts=of_strategy)),
            policy_loss=SimpleNamespace(load_fact=vars(facts).get, entry=SimpleNamespace(facts=facts)),
            kl_loss=None if kl_loss is None else SimpleNamespace(entry=SimpleNamespace(needs=kl_loss)),
            environment=None,
            scorer=None,
            scorers={},
        )


@pytest.fixture
def trainer(tmp_path):
    """``trainer(critic=False, reference=False, needs={…}, section__key=value, …)``: made up, at step 1 of 10.

    ``needs`` are those of the advantage estimator, ``kl_loss`` those of the KL loss; ``trainer.calls`` are the calls of
    its parts. ``trainer.at(scored, experience)`` is the present step with a batch.
    """

    def make(
        critic=False,
        reference=False,
        needs=(),
        select_tokens=None,
        kl_loss=None,
        corrector=None,
        zero_at_zero_advantage=False,
        outputs_of_update=False,
        **keys,
    ):
        config = TrainConfig(ModelConfig("x"))
        config.actor.ppo_mini_batch_size, config.data.max_response_length = 1, 8
        for key, value in keys.items():
            section, _, name = key.partition("__")
            setattr(getattr(config, section), name, value)
        calls = []

        def send_weights(version, *, verify):
            calls.append(f"send_weights({version}, verify={verify})")

        def estimate(inputs):
            calls.append("estimate")
            return Advantages(inputs.rewards.clone(), 2 * inputs.rewards)

        parts = Parts(needs, select_tokens, kl_loss, zero_at_zero_advantage, outputs_of_update)
        run = SimpleNamespace(config=config, parts=parts, folder=tmp_path, plugins=load_plugins())
        models = Models(
            actor=Worker("actor", calls),
            critic=Worker("critic", calls) if critic else None,
            reference=Worker("reference", calls) if reference else None,
            shape=ModelShape(1, 1, 1),
        )
        corrector = corrector or ImportanceCorrector(RolloutCorrectionConfig(rollout_is="none"))
        guard = NonFiniteGuard(tmp_path / "nonfinite", skip=True, hook=run.plugins.hook)
        held = Batch(config, run.plugins.hook, None, estimate, corrector, guard)
        made = Trainer(
            run=run,
            models=models,
            stream=SimpleNamespace(),
            engines=SimpleNamespace(send_weights=send_weights, restarts=2, lost={("a", 1)}, actor_in_use=nullcontext()),
            devices=Devices(calls),
            batch=held,
            kl_penalty=None,
            updates=Updates(config, parts, models, held, corrector, Seeds(0)),
            evaluation=None,
            records=Records(run, log=SimpleNamespace(), checkpoints=None),
            stopping=Stopping(),
            total_steps=10,
            step=1,
        )

        def at(scored, experience=None):
            step = Step(made.step, made.stopping)
            step.groups = StepGroups(scored, {}, {}, {})
            held.take(scored)
            held.experience = experience or held.experience
            step.tokens = held.experience.tokens()
            step.rows = held.experience.numbers()
            return step

        made.calls, made.at = calls, at
        return made

    return make


@pytest.fixture
def batch(scored_rollouts):
    """``batch(scores, …)``: responses and their experience, with log-probs of -1 and advantages of 1."""

    def make(scores=(1.0, 0.0), **options):
        scored = scored_rollouts(list(scores), **options)
        experience = scored.experience()
        experience.old_log_probs = torch.full(experience.response_mask.shape, -1.0)
        experience.advantages = experience.returns = torch.ones(experience.response_mask.shape)
        return scored, experience

    return make
