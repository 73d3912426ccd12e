"""verl's defaults by version, and the values in effect."""

import pytest

from corerl.config.nearest_keys import dotted_keys
from corerl.contracts.config import TrainConfig
from corerl_verl.from_verl import WRITTEN, default_values
from corerl_verl.keys import PREFIX
from corerl_verl.versions import Effective, defaults, guess, versions

ELSEWHERE = {
    "actor.optim.lr_warmup_steps": "-1: none, a rule",
    "actor.optim.optimizer": "AdamW, in both",
    "actor.ppo_max_token_len_per_gpu": "null: 16384 on a GPU, verl's default",
    "actor.ppo_micro_batch_size_per_gpu": "verl has no default",
    "actor.strategy": "a rule",
    "algorithm.adv_estimator": "a rule",
    "algorithm.filter_groups.max_num_gen_batches": "0: no limit, a rule",
    "critic.optim.lr_warmup_steps": "-1: none, a rule",
    "critic.optim.optimizer": "AdamW, in both",
    "critic.ppo_epochs": "the actor's, in both",
    "critic.ppo_mini_batch_size": "the actor's, in both",
    "critic.strategy": "a rule",
    "data.train_max_samples": "-1: all, in both",
    "data.val_max_samples": "-1: all, in both",
    "ref.strategy": "a rule",
    "ref.log_prob_max_token_len_per_gpu": "the size of micro-batches changes no result",
    "reward.num_workers": "a matter of speed",
    "rollout.free_cache_engine": "null: true with shared GPUs",
    "rollout.multi_turn.format": "null: by the chat template",
    "rollout.multi_turn.max_assistant_turns": "has an effect with agents only",
    "rollout.multi_turn.max_tool_response_length": "has an effect with agents only",
    "rollout.n_gpus_per_node": "a rule",
    "rollout.name": "a rule",
    "rollout.nnodes": "a rule",
    "rollout.val_kwargs.temperature": "a rule",
}
"""keys with another default that is not written one by one"""


@pytest.mark.parametrize("engine", ["fsdp", "megatron"])
def test_every_key_of_the_same_name_with_another_default_is_written_or_has_a_reason(engine: str) -> None:
    own, same = default_values(), set(dotted_keys(TrainConfig))
    differing = set()
    for version in versions():
        effective = Effective({"rollout.name": "vllm"}, version, engine)
        for key in (key.removeprefix(PREFIX) for key in defaults(version, engine)):
            value = effective(key)
            if key in own and key in same and value is not None and value != own[key]:
                differing.add(key)
    assert differing - set(WRITTEN) - set(ELSEWHERE) == set()


def test_interpolations_follow_what_the_command_sets() -> None:
    effective = Effective({"actor.use_dynamic_bsz": True, "data.max_response_length": 7}, "0.9", "fsdp")
    assert effective("ref.log_prob_use_dynamic_bsz") is True
    assert effective("rollout.response_length") == 7
    assert effective("critic.ppo_mini_batch_size") == 256
    assert effective("rollout.name") is None  # required
    assert effective("nothing.here", 3) == 3


def test_the_version_is_the_newest_with_the_commands_keys() -> None:
    assert guess(["rollout.name", "reward.num_workers"], "fsdp") == "0.9"
    assert guess(["rollout.name", "reward_model.strategy"], "fsdp") < "0.8"
    assert guess(["data.seed"], "fsdp") == "0.5"


def test_interpolations_of_given_values() -> None:
    given = {"data.train_batch_size": 64, "data.a": "${data.b}${data.b}", "data.b": "x${.c}", "data.c": "${data.a}"}
    effective = Effective(given, "0.9", "fsdp", {"N": "8"})
    assert effective.resolved("actor.ppo_mini_batch_size", "${data.train_batch_size}") == 64
    assert effective.resolved("data.d", ["${oc.env:N}", "${oc.env:M,7}", "n${.train_batch_size}"]) == [8, 7, "n64"]
    for unknown in ("${oc.env:M}", "${data.a}", "${data.none}", "a${data.none}${data.b}", "${now:%Y}"):
        assert effective.resolved("data.d", unknown) == unknown
    bomb = {f"data.k{number}": f"${{data.k{number + 1}}}" * 20 for number in range(20)} | {"data.k20": "x"}
    assert Effective(bomb, "0.9", "fsdp").resolved("data.d", "${data.k0}") == "${data.k0}"
