"""Real environments of the library, tiny ones, played without a model."""

import asyncio
import functools
import json
import sys
import textwrap

import pytest

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError
from corerl_envs import Task
from corerl_verifiers import options
from corerl_verifiers.options import VerifiersOptions

ENVIRONMENTS = """
    import verifiers as vf
    from datasets import Dataset

    DATA = Dataset.from_list([{"question": "2 + 2?", "answer": "4"}])

    def right(completion, answer, **kwargs):
        return float(answer in completion[-1].content)

    def same_text(completion, answer):
        assert isinstance(answer, str), f"answer is {answer!r}"
        return float(answer == completion[-1].content)

    def polite(completion):
        return float("please" in completion[-1].content)

    def broken(completion):
        raise ConnectionError("no judge")

    def together(completions, **kwargs):
        return [0.0 for _ in completions]

    def add(a: int, b: int) -> int:
        "The sum."
        return a + b

    class Guess(vf.MultiTurnEnv):
        async def setup_state(self, state):
            state["secret"] = int(state["answer"])

        @vf.stop
        async def found(self, state):
            return state.get("found", False)

        async def env_response(self, messages, state, **kwargs):
            guess = int(messages[-1].content)
            if guess == state["secret"]:
                state["found"] = True
                state["final_env_response"] = [{"role": "user", "content": "yes"}]
                return []
            return [{"role": "user", "content": "more" if guess < state["secret"] else "less"}]

    def load_environment(kind, funcs=("right", "polite")):
        rubric = vf.Rubric(funcs=[globals()[name] for name in funcs], weights=[1.0, 0.5][: len(funcs)])
        if kind == "guess":
            return Guess(dataset=DATA, rubric=vf.Rubric(funcs=[lambda state: float(state.get("found", False))]))
        if kind == "tools":
            return vf.ToolEnv(dataset=DATA, rubric=rubric, tools=[add])
        return vf.SingleTurnEnv(dataset=DATA, rubric=rubric)
"""

CONFIG = TrainConfig(model=ModelConfig(path="m"))
TASK = Task([{"role": "user", "content": "2 + 2?"}], "4", "acme/sums")


@pytest.fixture
def played(tmp_path, monkeypatch):
    """An episode of an environment with these turns, in one event loop: the start and what followed each turn."""
    pytest.importorskip("verifiers", reason="the library verifiers is not installed (corerl-verifiers[verifiers])")
    from corerl_verifiers.environment import VerifiersEnvironment

    (tmp_path / "tiny_verifiers.py").write_text(textwrap.dedent(ENVIRONMENTS))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tiny_verifiers", raising=False)

    def play(kind, *turns, task=TASK, **args):
        environment = VerifiersEnvironment(options=VerifiersOptions("tiny-verifiers", {"kind": kind, **args}))

        async def episode():
            start = await environment.reset(task, 1)
            answers = [await environment.step(start.state, turn) for turn in turns]
            return start, answers, await environment.end(start.state)

        try:
            return asyncio.run(episode())
        finally:
            environment.close()

    return play


@pytest.mark.parametrize(("text", "reward"), [("4", 1.0), ("4, please", 1.5), ("5", 0.0)])
def test_a_single_turn_is_rewarded_by_the_rubric(played, text, reward):
    start, [turn], last = played("single", text)
    assert start.messages == TASK.messages
    assert (turn.done, turn.reward, last) == (True, reward, None)


@pytest.mark.parametrize(
    ("ground_truth", "text"),
    [(4, "4"), (2.5, "2.5"), (["4", "four"], '["4", "four"]'), ({"low": 1}, '{"low": 1}'), (None, ""), ("4", "4")],
)
def test_the_rubric_gets_the_ground_truth_as_text(played, ground_truth, text):
    task = Task(TASK.messages, ground_truth, TASK.data_source)
    _, [turn], _ = played("single", text, task=task, funcs=["same_text"])
    assert turn.reward == 1.0


def test_several_turns_go_on_until_the_environment_is_done(played):
    _, turns, last = played("guess", "9", "1", "4")
    assert [turn.done for turn in turns] == [False, False, True]
    assert [list(turn.messages) for turn in turns[:2]] == [
        [{"role": "user", "content": "less"}],
        [{"role": "user", "content": "more"}],
    ]
    assert (turns[-1].reward, last) == (1.0, None)


def test_an_episode_that_a_limit_ends_is_rewarded_by_the_rubric_at_its_end(played):
    _, [turn], last = played("guess", "9")
    assert (turn.done, turn.reward, last) == (False, 0.0, 0.0)
    _, [], last = played("guess")
    assert last == 0.0


def test_tools_are_described_called_and_answered(played):
    call = {"name": "add", "arguments": {"a": 2, "b": 2}}
    start, [first, second], last = played("tools", f"<tool_call>{json.dumps(call)}</tool_call>", "It is 4, please.")
    assert [message["role"] for message in start.messages] == ["system", "user"]
    assert '"name": "add"' in start.messages[0]["content"] and "The sum." in start.messages[0]["content"]
    assert list(first.messages) == [{"role": "tool", "content": "4"}]
    assert (first.tool_calls, first.tool_errors, first.done) == (1, 0, False)
    assert (second.tool_calls, second.done, second.reward, last) == (0, True, 1.5, None)


def test_a_malformed_call_is_answered_and_counted(played):
    _, [turn], _ = played("tools", '<tool_call>{"name": "add"</tool_call>')
    assert (turn.tool_calls, turn.tool_errors, turn.done) == (1, 1, False)
    assert turn.messages[0]["role"] == "tool" and turn.messages[0]["content"]


def test_a_reward_function_that_raises_is_an_error_and_no_0(played):
    with pytest.raises(ConnectionError, match="no judge"):
        played("single", "4", funcs=["right", "broken"])


def test_what_cannot_be_played_is_said_at_once(played):
    with pytest.raises(ConfigError, match="compares responses"):
        played("single", funcs=["together"])
    with pytest.raises(ConfigError, match=r"environment.env_id: 'tiny-verifiers' cannot be loaded"):
        played("single", nonsense=1)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (None, r"needs the library verifiers, which is not installed: pip install 'corerl-verifiers\[verifiers\]'"),
        ("0.4.0", r"from 0\.1\.14 to before 0\.4, not 0\.4\.0"),
        ("0.1.9", "not 0.1.9"),
        ("0.1.14", None),
        ("0.2.1", None),
        ("0.3.0", None),
        ("0.3.1", None),
    ],
)
def test_the_library_is_looked_for_before_anything_is_loaded(monkeypatch, version, words):
    def installed(name):
        if version is None:
            raise options.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(options.metadata, "version", installed)
    check = functools.partial(VerifiersOptions("gsm8k").check, "rollout.multi_turn.environment", CONFIG)
    if words is None:
        check()
    else:
        with pytest.raises(ConfigError, match=rf"^rollout.multi_turn.environment: .*{words}"):
            check()
