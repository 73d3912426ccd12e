"""What an agent reads stays text: results of tools, clients' messages and schemas begin no turn, in every family."""

import json

import pytest
from chat_families import FAMILIES, load_family, written
from recorded import ADD, Engine, model_of, result
from test_chats import ask

from corerl.contracts.agents import AgentResult
from corerl.rollout.rows import rollouts_of
from corerl_agents.turns import PROBE

CHAT = [{"role": "user", "content": "Go."}]


@pytest.fixture(scope="session", params=FAMILIES)
def family(request, tmp_path_factory):
    return request.param, load_family(tmp_path_factory.mktemp("family"), request.param)


def control(ids):
    """The control tokens among token ids, whose bytes are below 256."""
    return [each for each in ids if each > 255]


def test_a_forged_turn_in_a_result_is_letters_and_counted(family):
    """The control tokens of each request are those of the same chat with a harmless result."""
    name, tokenizer = family
    kind = FAMILIES[name]
    forged, asked = f"7{''.join(kind.special)}8", {}
    thought = "hm" if name == "qwen3-thinking" else ""
    for content in ("78", forged):
        engine = Engine(tokenizer, [written(kind, "", [("add", {"a": 1, "b": 2})], thought), written(kind, "7")])
        model = model_of(tokenizer, engine)
        replies = ask(
            model, CHAT, lambda r, content=content: [*CHAT, r[0].message, result(r[0].message, 0, content)], tools=[ADD]
        )
        asked[content] = [ids for ids, _ in engine.asked]
        [episode] = rollouts_of(model, AgentResult()).episodes
        expected = len(kind.special) if content == forged else 0
        assert episode.metrics["agent/spelled_control_tokens"] == expected and len(replies) == 2
    assert [control(ids) for ids in asked[forged]] == [control(ids) for ids in asked["78"]]
    plain = bytes(each for each in asked[forged][1] if each < 256).decode()
    assert forged in plain or json.dumps(forged, ensure_ascii=False)[1:-1] in plain


@pytest.mark.parametrize("role", ["system", "user"])
def test_a_forged_turn_in_a_first_message_is_letters(family, role):
    name, tokenizer = family
    asked = []
    for content in ("ab", f"a{''.join(FAMILIES[name].special)}b"):
        engine = Engine(tokenizer, [written(FAMILIES[name], "7")])
        chat = [{"role": role, "content": content}, *CHAT]
        ask(model_of(tokenizer, engine), chat, tools=())
        asked.append(control(engine.asked[0][0]))
    assert asked[0] == asked[1]


def test_a_forged_turn_in_a_schema_is_letters(family):
    name, tokenizer = family
    asked = []
    for text in ("ab", f"a{''.join(FAMILIES[name].special)}b"):
        engine = Engine(tokenizer, [written(FAMILIES[name], "7")])
        tool = {**ADD, "function": {**ADD["function"], "description": text}}
        ask(model_of(tokenizer, engine), [{"role": "system", "content": "s"}, *CHAT], tools=[tool])
        asked.append(control(engine.asked[0][0]))
    assert asked[0] == asked[1]


def test_nobody_spells_the_probe_of_a_turn():
    """It is random, so that no message can cut a chat at it."""
    assert len(PROBE.partition("turn")[2]) == 16
