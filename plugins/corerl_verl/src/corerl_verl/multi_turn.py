"""verl's tools, interactions and agent loops, as agents of CoreRL."""

from typing import Any

from corerl_verl.conversion import Conversion, is_number, is_true, shown

_SECTION = "rollout.multi_turn"
_FILES = {
    "tools": "tool_config_path",
    "functions": "function_tool_path",
    "interactions": "interaction_config_path",
}
"""option of the agents -> verl's key"""
_FORMATS = {"hermes": "hermes", "gpt-oss": "harmony", "qwen3_coder": "qwen_xml", "glm": "glm", "llama3_json": "llama"}
"""verl's parser of tool calls -> CoreRL's format"""
_LOOP_FILE = "rollout.agent.agent_loop_config_path"
_KNOWN = (
    *(f"rollout.agent.{name}" for name in ("num_workers", "agent_loop_manager_class")),
    *(f"{_SECTION}.{name}" for name in ("max_assistant_turns", "max_user_turns", "max_turns", "max_parallel_calls")),
    *(f"{_SECTION}.{name}" for name in ("max_tool_response_length", "tool_response_truncate_side", "format")),
)
"""keys that are converted for every agent"""
_ONE_TURN = "the command has no tool, interaction or agent loop: a response is one turn"
_TOKENS = "chats continue tokens (docs/architecture.md)"
_LOOPS = ("single_turn_agent", "tool_agent", "diffusion_single_turn_agent")
_EPISODE = 3600.0
"""seconds of an episode (rollout.agent_timeout); verl's tools have no deadline but their own"""
_NO_LIMIT = 1_000_000
_PLAYED = (
    "played by the agent {}: classes need verl, or the base classes of corerl_verl (docs/verl.md); all rows have this "
    "agent, where in verl a column agent_name selects one"
)
_SCORED = "if the loop returns a reward_score, write rollout.multi_turn.score_response=false"
_PROMPT = "CoreRL's filter of long prompts counts a prompt without the tools' descriptions"


def multi_turn(conversion: Conversion) -> None:
    """``rollout.agent`` and the limits of its turns."""
    files = {option: conversion.take(f"{_SECTION}.{name}") for option, name in _FILES.items()}
    loops = conversion.take(_LOOP_FILE)
    default = str(conversion.take("rollout.agent.default_agent_loop", _LOOPS[0]))
    enabled = conversion.take(f"{_SECTION}.enable")
    for key in ("use_inference_chat_template", "tokenization_sanity_check_mode", "enable_tokenization_sanity_check"):
        conversion.drop(f"{_SECTION}.{key}", _TOKENS)
    named = {name: path for name, path in files.items() if path is not None}
    asked = enabled is None or is_true(enabled) or default == "tool_agent"
    if loops is not None and (default not in _LOOPS or not (named and asked)):
        named.pop("interactions", None)
        loop = {} if default in _LOOPS else {"loop": default}
        _agent(conversion, "verl_agent_loop", {"config": loops, **loop, **named, **_settings(conversion)})
    elif default not in _LOOPS:
        reason = "no file names the class of this loop: write one for agent_loop_config_path, or an agent of your own"
        conversion.remark(f"rollout.agent.default_agent_loop={default}", f"{reason} (docs/agents.md)", "missing")
        _one_turn(conversion)
    elif named and asked:
        _agent(conversion, "verl_tools", named)
    else:
        _one_turn(conversion)


def _settings(conversion: Conversion) -> dict[str, Any]:
    """The keys that verl does not have, for loops that read them."""
    sections = ("rollout.agent.", f"{_SECTION}.")
    own = [key for key in conversion.given if key.startswith(sections) and key not in _KNOWN]
    found = {key.removeprefix("rollout."): conversion.given.pop(key) for key in own}
    return {"settings": found} if found else {}


def _one_turn(conversion: Conversion) -> None:
    for key in ("num_workers", "default_agent_loop"):
        conversion.drop(f"rollout.agent.{key}", _ONE_TURN)
    conversion.drop_section(_SECTION, _ONE_TURN)
    for key in ("data.tool_config_path", "data.function_tool_path"):
        conversion.drop(key, _ONE_TURN)


def _agent(conversion: Conversion, name: str, options: dict[str, Any]) -> None:
    """The agent with its options, and the limits with verl's defaults."""
    conversion.values["rollout.agent"] = name
    calls = conversion.take(f"{_SECTION}.max_parallel_calls")
    side = conversion.take(f"{_SECTION}.tool_response_truncate_side")
    options |= {} if calls is None else {"max_calls": calls}
    options |= {"truncate_side": side} if side is not None and name == "verl_tools" else {}
    conversion.values |= {f"rollout.agent.{option}": value for option, value in options.items()}
    key = next((f"{_SECTION}.{_FILES[option]}" for option in _FILES if option in options), "")
    reason = _PLAYED.format(name)
    if "config" in options:
        conversion.remark(shown(_LOOP_FILE, options["config"]), f"{reason}; {_SCORED}")
    else:
        conversion.remark(key, reason)
    longest = conversion.take(f"{_SECTION}.max_tool_response_length")
    if longest is None:
        longest = conversion.effective(f"{_SECTION}.max_tool_response_length", 256)
    conversion.values |= {
        f"{_SECTION}.max_assistant_turns": _turns(conversion),
        f"{_SECTION}.max_tool_response_length": longest,
        f"{_SECTION}.tool_timeout": _EPISODE,
    }
    _format(conversion)
    workers = conversion.take("rollout.agent.num_workers")
    if is_number(workers):
        conversion.values["rollout.num_workers"] = workers
    for name in ("data.tool_config_path", "data.function_tool_path"):
        conversion.drop(name, _PROMPT)


def _turns(conversion: Conversion) -> Any:
    """The policy's turns: after ``max_user_turns`` answers verl's policy has one more turn, then the episode ends."""
    own = conversion.take(f"{_SECTION}.max_assistant_turns", conversion.take(f"{_SECTION}.max_turns"))
    answers = conversion.take(f"{_SECTION}.max_user_turns")
    limits = [own] if is_number(own) and own > 0 else []
    limits += [answers + 1] if is_number(answers) and answers > 0 else []
    longest: Any = conversion.effective("data.max_response_length")
    return min(limits) if limits else longest if is_number(longest) else _NO_LIMIT  # a turn has a token


def _format(conversion: Conversion) -> None:
    """verl's default is hermes, CoreRL's the chat template's own."""
    given = conversion.take(f"{_SECTION}.format")
    name = str(given if given is not None else conversion.effective(f"{_SECTION}.format", "hermes"))
    if name in _FORMATS:
        conversion.values[f"{_SECTION}.format"] = _FORMATS[name]
    elif name != "chatml":  # of verl 0.4: the template's own
        reason = "CoreRL has no parser of these tool calls; written as null: by the chat template"
        conversion.remark(f"{_SECTION}.format={name}", reason, "missing")
