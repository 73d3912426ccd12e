"""What a config selects, and the rules between its keys."""

import dataclasses
import sys
from typing import Any

import pytest

from corerl import option
from corerl.cli.common import violations
from corerl.config.load import load
from corerl.contracts.config import TrainConfig
from corerl.contracts.kinds import Kind
from corerl.errors import ConfigError, PluginError, UnknownNameError
from corerl.plugins import load_plugins
from corerl.registry import Owner, Registries
from corerl.registry.parts import Parts, resolve_parts

HEAVY = "no_such_module_at_all:part"
"""what every part points at: looking names up imports nothing"""


@dataclasses.dataclass
class ClipOptions:
    clip_ratio_low: float = option(0.2, "below", gt=0)
    clip_ratio_high: float = option(0.2, "above", gt=0)


@dataclasses.dataclass
class PortOptions:
    port: int = option(8000, "of the server", ge=1)


@pytest.fixture
def registries() -> Registries:
    registries = Registries()

    def add(registry_name: str, name: str, **facts: Any) -> None:
        registry = getattr(registries, registry_name)
        registry.add(registry.entry(name, HEAVY, Owner("acme", "1.0"), **facts))

    add("advantage_estimators", "grpo", needs={"groups"})
    add("advantage_estimators", "single")
    add("advantage_estimators", "gae", needs={"critic"})
    add("advantage_estimators", "remax", needs={"greedy_baseline"})
    add("policy_losses", "vanilla", options=ClipOptions)
    add("policy_losses", "plain")
    add("policy_losses", "grouped", needs={"groups"})
    add("kl_types", "low_var_kl")
    add("kl_types", "full", needs={"logits"})
    add("kl_controllers", "fixed")
    add("value_losses", "clipped")
    add("batch_filters", "dynamic_sampling")
    add("training_strategies", "torch")
    add("rollout_backends", "hf", options=PortOptions)
    add("reward_managers", "parallel")
    add("scorers", "exact", options=PortOptions)
    add("runtimes", "local")
    add("trackers", "console")
    add("trackers", "csv", options=PortOptions)
    return registries


BASE = ("model.path=tiny", "data.train_files=[a.parquet]")


def resolve(registries: Registries, *overrides: str) -> tuple[TrainConfig, Parts]:
    config = load(TrainConfig, None, [*BASE, *overrides])
    return config, resolve_parts(config, registries)


def check(config: TrainConfig, parts: Parts) -> None:
    for error in violations(config, parts, load_plugins()):
        raise error


def test_every_name_is_looked_up_and_nothing_is_imported(registries: Registries) -> None:
    _, parts = resolve(registries)
    assert {key: part.entry.name for key, part in parts.selected()} == {
        "algorithm.adv_estimator": "grpo",
        "actor.policy_loss": "vanilla",
        "actor.strategy": "torch",
        "rollout.name": "hf",
        "reward.manager": "parallel",
        "runtime.name": "local",
        "tracking.loggers[0]": "console",
    }
    assert (parts.kl_loss, parts.kl_penalty, parts.scorer) == (None, None, None)
    assert "no_such_module_at_all" not in sys.modules


def test_kl_types_are_selected_where_they_are_used(registries: Registries) -> None:
    _, parts = resolve(registries, "actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true")
    assert parts.kl_loss is not None and parts.kl_loss.entry.name == "low_var_kl"
    assert parts.kl_penalty is not None and parts.kl_penalty.entry.name == "low_var_kl"


def test_an_environment_alone_selects_the_agent_that_drives_it(registries: Registries) -> None:
    for name in ("environment", "mine"):
        registries.agents.add(registries.agents.entry(name, HEAVY, Owner("acme", "1.0")))
    games = registries.add(Kind("games", "game", object, "rollout.multi_turn.environment"))
    games.add(games.entry("chess", HEAVY, Owner("zeta", "2.0"), options=PortOptions))
    registries.add(Kind("samplers", "sampler", object, "data.no_such_key"))
    _, parts = resolve(registries)
    assert (parts.agent, parts.others) == (None, {})
    _, parts = resolve(registries, "rollout.multi_turn.environment={name: chess, port: 5}")
    assert parts.agent is not None and parts.agent.entry.name == "environment"
    assert {key: part.options for key, part in parts.others.items()} == {
        "rollout.multi_turn.environment": PortOptions(5)
    }
    assert {"rollout.agent", "rollout.multi_turn.environment"} <= {key for key, _ in parts.selected()}
    assert parts.versions()["zeta"] == "2.0"
    _, parts = resolve(registries, "rollout.agent=mine")
    assert parts.agent is not None and parts.agent.entry.name == "mine"
    with pytest.raises(UnknownNameError, match=r"^rollout.multi_turn.environment: unknown game 'ches'"):
        resolve(registries, "rollout.multi_turn.environment=ches")


def test_options_reach_their_part(registries: Registries) -> None:
    _, parts = resolve(
        registries,
        "rollout.options={port: 1}",
        "reward.scorer={name: exact, port: 2}",
        "tracking.loggers=[console, {name: csv, port: 3}]",
        "actor.policy_loss.clip_ratio_low=0.4",
    )
    assert parts.rollout_backend.options == PortOptions(1)
    assert parts.scorer is not None and parts.scorer.options == PortOptions(2)
    assert [tracker.options for tracker in parts.trackers] == [None, PortOptions(3)]
    assert parts.policy_loss.options == ClipOptions(clip_ratio_low=0.4)


@pytest.mark.parametrize(
    "overrides",
    [
        ["reward.scorers={my/source: {name: exact, port: 2}, 'aime*': exact}"],
        ["reward.scorers.my/source={name: exact, port: 2}", "reward.scorers.aime*=exact"],
    ],
)
def test_each_data_source_can_be_given_a_scorer(registries: Registries, overrides: list[str]) -> None:
    _, parts = resolve(registries, *overrides)
    assert {source: scorer.options for source, scorer in parts.scorers.items()} == {
        "my/source": PortOptions(2),
        "aime*": PortOptions(),
    }
    assert {"reward.scorers.my/source", "reward.scorers.aime*"} <= {key for key, _ in parts.selected()}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reward.scorers={a/b: exakt}", r"^reward.scorers.a/b: unknown scorer 'exakt' \(did you mean 'exact'"),
        ("reward.scorers={my/source: {name: exact, prot: 1}}", r"^reward.scorers.my/source.prot: unknown key"),
        (
            "reward.scorers={my/source: null}",
            r"^reward.scorers.my/source: must be a name, or a mapping with .*, not null$",
        ),
        ("reward.scorers={my/source: ./nowhere.py:score}", r"^reward.scorers.my/source: scorer './nowhere.py:score'"),
        ("reward.scorers=exact", r"^reward.scorers: must be a mapping"),
        ("rollout.options={prot: 1}", r"^rollout.options.prot: unknown key; did you mean rollout.options.port\?"),
        ("rollout.options={port: 0}", r"^rollout.options.port: must be at least 1, not 0"),
        ("runtime.options={port: 0}", r"^runtime.options.port: runtime 'local' has no options"),
        ("rollout.name=fh", r"^rollout.name: unknown rollout backend 'fh'"),
        ("tracking.loggers=[console, csb]", r"^tracking.loggers\[1\]: unknown tracker 'csb' \(did you mean 'csv'\?\)"),
        ("reward.manager=3", r"^reward.manager: must be a name, or a mapping with 'name' and options, not 3$"),
        ("actor.kl_loss_type=k9", r"^actor.kl_loss_type: unknown KL type 'k9'"),
        (
            "algorithm.kl_penalty={name: low_var_kl, x: 1}",
            r"^algorithm.kl_penalty.x: KL type 'low_var_kl' has no options",
        ),
    ],
)
def test_a_wrong_name_or_option_is_an_error_with_its_key(registries: Registries, override: str, message: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError, PluginError), match=message):
        resolve(registries, "actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true", override)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor.policy_loss.clip_ratio_c=3"], r"^actor.policy_loss.clip_ratio_c: unknown key; did you mean .*clip_"),
        (
            ["actor.policy_loss=plain", "actor.policy_loss.clip_ratio_low=0.1"],
            r"^actor.policy_loss.clip_ratio_low: policy loss 'plain' has no options$",
        ),
    ],
)
def test_an_option_that_the_part_does_not_take_is_an_error(
    registries: Registries, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(registries, *overrides)


def test_the_defaults_with_training_files_pass(registries: Registries) -> None:
    check(*resolve(registries))


@pytest.mark.parametrize(
    "overrides",
    [
        ("data.train_batch_size=64", "actor.ppo_mini_batch_size=64"),
        ("algorithm.adv_estimator=single", "rollout.n=1"),
        ("data.val_files=[b]", "trainer.test_freq=5"),
        ("rollout.val_kwargs.n=4", "rollout.val_kwargs.do_sample=true"),
        ("actor.optim.betas=[0, 0.95]",),
    ],
)
def test_configs_that_look_odd_and_are_right_pass(registries: Registries, overrides: tuple[str, ...]) -> None:
    check(*resolve(registries, *overrides))


WRONG = {
    "no training files": (["data.train_files=[]"], r"^data.train_files: must name at least one parquet file$"),
    "a batch that does not divide": (
        ["data.train_batch_size=100", "actor.ppo_mini_batch_size=32"],
        r"^data.train_batch_size: 100 prompts do not divide into mini-batches of actor.ppo_mini_batch_size=32 "
        r"\(100 = 3 × 32 \+ 4\); 96 would, and so would 128$",
    ),
    "a batch smaller than the mini-batch": (
        ["data.train_batch_size=16", "actor.ppo_mini_batch_size=64"],
        r"^actor.ppo_mini_batch_size: 64 prompts are more than data.train_batch_size, the 16 prompts",
    ),
    "groups of one": (
        ["rollout.n=1"],
        r"^rollout.n: must be at least 2, not 1: algorithm.adv_estimator=grpo compares the responses to one prompt$",
    ),
    "groups of one in a loss": (
        ["rollout.n=1", "algorithm.adv_estimator=single", "actor.policy_loss=grouped"],
        r"^rollout.n: must be at least 2, not 1: actor.policy_loss=grouped compares",
    ),
    "warming up no critic": (
        ["trainer.critic_warmup=2"],
        r"^trainer.critic_warmup: 2 steps would update nothing: advantage estimator 'grpo' has no critic$",
    ),
    "mini-batches of the critic": (
        ["algorithm.adv_estimator=gae", "critic.ppo_mini_batch_size=512"],
        r"^critic.ppo_mini_batch_size: 512 prompts are more than data.train_batch_size",
    ),
    "generated batches without a filter": (["data.gen_batch_size=512"], r"^data.gen_batch_size: has an effect with"),
    "a KL loss of no weight": (["actor.use_kl_loss=true", "actor.kl_loss_coef=0"], r"^actor.kl_loss_coef: is 0"),
    "no tokens": (["rollout.top_k=0"], r"^rollout.top_k: must be at least 1, or -1 for all tokens, not 0$"),
    "no tokens in evaluation": (["rollout.val_kwargs.top_k=0"], r"^rollout.val_kwargs.top_k: must be at least 1"),
    "greedy twins": (
        ["rollout.val_kwargs.n=4"],
        r"^rollout.val_kwargs.n: 4 greedy responses to one prompt are all the same",
    ),
    "one beta": (["actor.optim.betas=[0.9]"], r"^actor.optim.betas: must be two numbers of .*, not \[0.9\]$"),
    "a beta of 1": (["actor.optim.betas=[0.9, 1]"], r"^actor.optim.betas: must be two numbers"),
    "evaluation of nothing": (
        ["trainer.test_freq=5"],
        r"^trainer.test_freq: asks for an evaluation every 5 steps, but data.val_files names no file$",
    ),
    "stages of an engine of one GPU": (
        ["rollout.pipeline_model_parallel_size=2"],
        r"^rollout.pipeline_model_parallel_size: is 2, and 'hf' has none: set 1, or use vllm or sglang$",
    ),
    "every 0 steps": (["trainer.save_freq=0"], r"^trainer.save_freq: must be at least 1, or -1, not 0$"),
}


@pytest.mark.parametrize(("overrides", "message"), WRONG.values(), ids=WRONG)
def test_a_rule_that_does_not_hold_is_spelled_out(registries: Registries, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(*resolve(registries, *overrides))


class Divided:
    """Options of an engine over several machines."""

    def check_nodes(self, nodes: int) -> None:
        pass


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tensor": 2, "pipeline": 2}, None),
        ({"tensor": 4, "pipeline": 2, "data": 2}, None),
        ({"tensor": 3}, "3 GPUs of an engine do not divide runtime.n_gpus_per_node=8, and an engine has GPUs of one m"),
        (
            {"tensor": 4, "pipeline": 3},
            "4 tensor × 3 pipeline parallel = 12 GPUs of an engine do not divide runtime.n_gpus_per_node=8, and an "
            "engine has GPUs of one machine, or all GPUs of several: 1, 2, 4, 8, 16 would",
        ),
    ],
)
def test_the_gpus_of_an_engine_are_those_of_all_its_ranks(
    registries: Registries, sizes: dict[str, int], message: str | None
) -> None:
    names = {"tensor": "tensor_model", "pipeline": "pipeline_model", "data": "data"}
    overrides = [f"rollout.{names[name]}_parallel_size={size}" for name, size in sizes.items()]
    config, parts = resolve(registries, *overrides)
    config.runtime = dataclasses.replace(config.runtime, name="ray", nnodes=2, n_gpus_per_node=8)
    parts = dataclasses.replace(parts, rollout_backend=dataclasses.replace(parts.rollout_backend, options=Divided()))
    found = [str(each) for each in violations(config, parts, load_plugins()) if "rollout." in str(each)]
    assert found == [] if message is None else message in found[0]
