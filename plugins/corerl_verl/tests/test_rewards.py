"""Reward models that a reward function asks."""

from plugins.corerl_verl.tests.conversion import convert

NAME = "actor_rollout_ref.rollout.name=vllm"
FUNCTION = ("reward.custom_reward_function.path=judge.py", "reward.custom_reward_function.name=score")


def test_a_function_that_asks_a_reward_model_gets_the_address_of_a_server() -> None:
    model = ("enable=True", "model_path=judge", "rollout.name=sglang", "rollout.tensor_model_parallel_size=2")
    config, remarks = convert(NAME, *FUNCTION, *(f"reward.reward_model.{each}" for each in model))
    asked = {"router": "127.0.0.1:8100", "reward_model": "judge"}
    assert config.reward.scorer == {"name": "verl", "path": "judge.py", "function": "score", **asked}
    [remark] = [each for each in remarks if "start `" in each]
    assert "start `python -m sglang.launch_server --model-path judge --tp-size 2 --port 8100` on GPUs" in remark
    for each in model[1:]:
        assert f"reward.reward_model.{each}" in remark


def test_values_of_a_section_with_its_former_name_are_in_effect() -> None:
    given = ("enable=True", "model_path=rm", "inference.prompt_length=1000", "inference.response_length=24")
    config, _ = convert(NAME, *(f"reward_model.{each}" for each in (*given, "inference.gpu_memory_utilization=0.8")))
    assert isinstance(config.reward.manager, dict)
    assert (config.reward.manager["engine"], config.reward.manager["max_length"]) == ("vllm", 1024)
    assert config.reward.manager["engine_args"] == {"gpu_memory_utilization": 0.8}


def test_a_service_for_programs_is_named() -> None:
    _, remarks = convert(NAME, "reward.sandbox_fusion.url=http://s", "reward.sandbox_fusion.max_concurrent=9")
    expected = (
        "programs of responses run in the scorer code's own sandbox, with its own limits (docs/rewards-isolation.md)"
    )
    assert remarks == [f"reward.sandbox_fusion.url=http://s, reward.sandbox_fusion.max_concurrent=9: {expected}"]
