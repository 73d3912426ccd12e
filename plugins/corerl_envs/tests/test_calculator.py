import pytest

from corerl_envs import Start, Task, Turn
from corerl_envs.calculator import Calculator
from corerl_envs.options import CalculatorOptions

TASK = Task(
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}], "84", "openai/gsm8k"
)


@pytest.mark.parametrize(
    "response",
    [
        "I need <calc>12 * (3 + 4)</calc>",
        "First:\n```calc\n12 * (3 + 4)\n```",
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 * (3 + 4)"}}\n</tool_call>',
    ],
)
def test_a_call_is_answered_with_its_result(response):
    turn = Calculator(options=CalculatorOptions()).step(None, response)
    assert turn == Turn([{"role": "tool", "content": "84"}], tool_calls=1)


def test_several_calls_are_answered_in_order_and_failed_ones_say_why():
    turn = Calculator(options=CalculatorOptions(role="user")).step(
        None, "<calc>1+1</calc> <calc>x</calc> <calc>1/0</calc>"
    )
    assert turn.messages == [
        {"role": "user", "content": "2\nerror: not an arithmetic expression\nerror: division by zero"}
    ]
    assert (turn.tool_calls, turn.tool_errors, turn.done) == (3, 2, False)


@pytest.mark.parametrize("call", ["not json", "[]", '{"arguments": {"expression": 5}}', "[" * 5000])
def test_a_malformed_tool_call_is_told_how_to_write_one(call):
    turn = Calculator(options=CalculatorOptions()).step(None, f"<tool_call>{call}</tool_call>")
    assert turn.messages[0]["content"].startswith("error: write {")


def test_at_most_max_calls_are_worked_out():
    turn = Calculator(options=CalculatorOptions(max_calls=2)).step(None, "<calc>1</calc>" * 5)
    assert (turn.messages[0]["content"], turn.tool_calls) == ("1\n1", 2)


def test_a_turn_without_a_call_ends_the_episode_without_a_reward():
    assert Calculator(options=CalculatorOptions()).step(None, "It is 84.\n#### 84") == Turn(done=True)


def test_the_instruction_stands_behind_the_users_message():
    start = Calculator(options=CalculatorOptions(instruction=" Use it.")).reset(TASK, 0)
    assert start.messages == [TASK.messages[0], {"role": "user", "content": "How many? Use it."}]
    assert Calculator(options=CalculatorOptions(instruction="")).reset(TASK, 0) == Start()
