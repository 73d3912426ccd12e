"""Turns whose reasoning the chat template opens: a scorer sees the tag in each of them."""

from chat_families import FAMILIES, load_family, written
from recorded import ADD, Engine, model_of, result
from test_chats import ask

from corerl.contracts.agents import AgentResult
from corerl.rollout.rows import rollouts_of
from corerl_rewards.answers import ReasoningOptions, answer_part

CHAT = [{"role": "user", "content": "Go."}]


def test_a_turn_that_is_cut_off_in_its_thoughts_has_no_answer(tmp_path):
    """The last turn never ends its reasoning: the answer is what the first turn wrote outside of its own."""
    tokenizer = load_family(tmp_path, "qwen3-thinking")
    first = written(FAMILIES["qwen3-thinking"], "", [("add", {"a": 1, "b": 2})], "1 and 2")
    model = model_of(tokenizer, Engine(tokenizer, [first, r"so \boxed{3}"]))
    ask(model, CHAT, lambda replies: [*CHAT, replies[0].message, result(replies[0].message, 0, "3")], tools=[ADD])
    [response] = rollouts_of(model, AgentResult()).responses
    thought, call = response.split("</think>")[0], response.split("</think>")[1].split("<think>")[0]
    assert thought == "<think>\n1 and 2\n" and response.endswith("\n<think>\nso \\boxed{3}")
    assert answer_part(response, ReasoningOptions()) == call and "boxed" not in call
