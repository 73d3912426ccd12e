"""Findings of ``corerl check`` about chat templates of every family."""

import pytest
from chat_families import FAMILIES, load_family

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl_agents.check import findings

REWRITES = {"qwen3", "qwen3-thinking", "glm", "harmony", "mistral"}
"""reasoning goes, or the tools move, once a user writes again"""


def found(tokenizer, agent="tools", form=None):
    config = TrainConfig(ModelConfig("m"))
    config.rollout.agent, config.rollout.multi_turn.format = agent, form
    return list(findings(config, tokenizer))


@pytest.mark.parametrize("name", FAMILIES)
def test_templates_of_families_have_notes_alone(name, tmp_path):
    notes = found(load_family(tmp_path, name))
    assert {each.severity for each in notes} == {"note"}
    sentences = " ".join(each.sentence for each in notes)
    assert f"are read as '{FAMILIES[name].format}'" in sentences
    assert ("behind a message of the user the chat template writes earlier turns differently" in sentences) == (
        name in REWRITES
    )
    assert "behind results of tools" not in sentences
    assert ("shows one tool call in a turn" in sentences) == (not FAMILIES[name].several)


PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@pytest.mark.parametrize(("agent", "severity"), [("tools", "warning"), ("./mine.py:agent", "note")])
def test_a_template_without_tools_is_named(agent, severity, tmp_path):
    tokenizer = load_family(tmp_path, "qwen2.5")
    tokenizer.tokenizer.chat_template = PLAIN
    [first, *_] = found(tokenizer, agent)
    assert first.severity == severity and "shows no tools" in first.sentence


def test_a_wrong_format_does_not_read_back_the_calls(tmp_path):
    warnings = [each for each in found(load_family(tmp_path, "qwen2.5"), form="glm") if each.severity == "warning"]
    assert [each.key for each in warnings] == ["rollout.multi_turn.format"]
    assert "does not read back the template's tool calls: '<tool_call>" in warnings[0].sentence


def test_an_unknown_spelling_of_calls_is_named(tmp_path):
    tokenizer = load_family(tmp_path, "qwen2.5")
    tokenizer.tokenizer.chat_template = "{{ tools }}" + PLAIN
    assert any("no known spelling of tool calls" in each.sentence for each in found(tokenizer))


def test_a_template_that_refuses_the_conversation_is_a_warning(tmp_path):
    tokenizer = load_family(tmp_path, "qwen2.5")
    tokenizer.tokenizer.chat_template = "{% if tools %}{{ raise_exception('no tools, please') }}{% endif %}" + PLAIN
    [warning] = [each for each in found(tokenizer) if each.severity == "warning"]
    assert "no tools, please" in warning.sentence


@pytest.mark.parametrize("agent", [None, "environment"])
def test_runs_without_chats_have_no_findings(agent, tmp_path):
    assert found(load_family(tmp_path, "qwen2.5"), agent) == []
