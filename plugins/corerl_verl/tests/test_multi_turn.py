"""verl's tools, interactions and agent loops, as agents of CoreRL."""

from typing import Any

import pytest

from corerl_verl import hydra
from corerl_verl.from_verl import convert as convert_parsed
from plugins.corerl_verl.tests.conversion import convert

ROLLOUT = "actor_rollout_ref.rollout"
TURNS = f"{ROLLOUT}.multi_turn"
NAME = f"{ROLLOUT}.name=vllm"
TOOLS = f"{TURNS}.tool_config_path=tools.yaml"


def missing(*arguments: str) -> list[str]:
    found = convert_parsed(hydra.parse(["actor_rollout_ref.model.path=m", *arguments]))
    return [str(remark) for remark in found.remarks if remark.kind in ("missing", "unknown")]


def test_tools_of_verls_yaml_are_an_agent_with_verls_limits() -> None:
    arguments = [NAME, f"{TURNS}.enable=True", TOOLS, f"{TURNS}.max_assistant_turns=5", f"{TURNS}.max_parallel_calls=3"]
    config, _ = convert(*arguments, f"{TURNS}.tool_response_truncate_side=left", f"{ROLLOUT}.agent.num_workers=4")
    options = {"tools": "tools.yaml", "max_calls": 3, "truncate_side": "left"}
    assert config.rollout.agent == {"name": "verl_tools", **options}
    turns = config.rollout.multi_turn
    assert (turns.max_assistant_turns, turns.max_tool_response_length, turns.format) == (5, 256, "hermes")
    assert config.rollout.num_workers == 4
    assert missing(*arguments) == []


@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        ((), 77),  # no limit: as many turns as a response has tokens
        (("max_assistant_turns=4",), 4),
        (("max_user_turns=2",), 3),  # after the second answer the policy has another turn
        (("max_user_turns=2", "max_assistant_turns=9"), 3),
        (("max_user_turns=9", "max_assistant_turns=2"), 2),
        (("max_user_turns=null", "max_assistant_turns=null"), 77),
        (("max_turns=6",), 6),  # of verl 0.4
    ],
)
def test_the_policy_has_one_turn_more_than_answers(limits: tuple[str, ...], turns: int) -> None:
    config, _ = convert(NAME, TOOLS, "data.max_response_length=77", *(f"{TURNS}.{limit}" for limit in limits))
    assert config.rollout.multi_turn.max_assistant_turns == turns


@pytest.mark.parametrize(
    ("name", "here"),
    [("gpt-oss", "harmony"), ("hermes", "hermes"), ("qwen3_coder", "qwen_xml"), ("glm", "glm"), ("chatml", None)],
)
def test_each_format_of_calls_has_its_name_here(name: str, here: str | None) -> None:
    config, _ = convert(NAME, TOOLS, f"{TURNS}.format={name}")
    assert config.rollout.multi_turn.format == here
    assert missing(NAME, TOOLS, f"{TURNS}.format={name}") == []


def test_a_format_without_a_parser_is_named() -> None:
    config, remarks = convert(NAME, TOOLS, f"{TURNS}.format=gemma4")
    assert config.rollout.multi_turn.format is None
    assert any(each.startswith("rollout.multi_turn.format=gemma4: CoreRL has no parser") for each in remarks)


def test_without_a_tool_a_response_is_one_turn_and_its_keys_lose_nothing() -> None:
    keys = [f"{TURNS}.{each}" for each in ("enable=True", "format=gpt-oss", "max_user_turns=2")]
    agents = [f"{ROLLOUT}.agent.{each}" for each in ("num_workers=8", "default_agent_loop=single_turn_agent")]
    config, _ = convert(NAME, *keys, *agents)
    assert config.rollout.agent is None
    assert config.rollout.multi_turn.format is None
    assert missing(NAME, *keys, *agents) == []


def test_tools_that_the_command_turns_off_are_not_played() -> None:
    off = [NAME, TOOLS, f"{TURNS}.enable=False"]
    assert convert(*off)[0].rollout.agent is None
    config, _ = convert(*off, f"{ROLLOUT}.agent.default_agent_loop=tool_agent")  # verl's loop does not read enable
    assert config.rollout.agent == {"name": "verl_tools", "tools": "tools.yaml"}


def test_functions_and_interactions_are_options_of_the_agent() -> None:
    files = (f"{TURNS}.function_tool_path=f.py", f"{TURNS}.interaction_config_path=users.yaml")
    config, _ = convert(NAME, *files)
    assert config.rollout.agent == {"name": "verl_tools", "functions": "f.py", "interactions": "users.yaml"}


def test_an_agent_loop_of_a_file_keeps_its_name_its_tools_and_keys_of_its_own() -> None:
    arguments = [
        NAME,
        f"{ROLLOUT}.agent.agent_loop_config_path=loops.yaml",
        f"{ROLLOUT}.agent.default_agent_loop=mine",
        f"+{ROLLOUT}.agent.depth=3",
        TOOLS,
    ]
    config, _ = convert(*arguments)
    options: dict[str, Any] = {"config": "loops.yaml", "loop": "mine", "tools": "tools.yaml"}
    assert config.rollout.agent == {"name": "verl_agent_loop", **options, "settings": {"agent.depth": 3}}
    assert missing(*arguments) == []


def test_a_loop_without_a_file_of_its_class_is_named() -> None:
    config, remarks = convert(NAME, f"{ROLLOUT}.agent.default_agent_loop=mine")
    assert config.rollout.agent is None
    assert any(each.startswith("rollout.agent.default_agent_loop=mine: no file names the class") for each in remarks)
