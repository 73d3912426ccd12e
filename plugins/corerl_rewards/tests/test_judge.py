from typing import Any

import pytest

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.errors import ConfigError
from corerl.plugins import load_plugins
from corerl_rewards.judge import JudgeRewardManager
from corerl_rewards.options import JudgeOptions
from plugins.corerl_rewards.tests.http_server import Server


def completion(text: Any, finish_reason: str | None = "stop") -> tuple[int, Any]:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    return 200, {"choices": [choice]}


def manager(url: str, timeout: float = 20.0, **options: Any) -> JudgeRewardManager:
    chosen = JudgeOptions(base_url=url + "/v1/", model="judge-8b", **{"backoff": 0.01, **options})
    return JudgeRewardManager({}, num_workers=4, timeout=timeout, options=chosen)


def request(response: str = "42", *contents: str) -> RewardRequest:
    roles = ("user", "assistant", "user")
    prompt = [{"role": role, "content": text} for role, text in zip(roles, contents or ("6 · 7?",), strict=False)]
    return RewardRequest(response, "the truth", "s", prompt=prompt)


def test_the_last_grade_becomes_the_score() -> None:
    with Server(lambda *_: completion("Score: 2 would be harsh.\n**Score: 7**")) as server:
        [result] = manager(server.url).score([request()])
    assert result == RewardResult(0.7, {"grade": 7.0}, "7")
    assert server.paths == ["/v1/chat/completions"]
    assert server.bodies[0]["model"] == "judge-8b"
    assert server.bodies[0]["temperature"] == 0.0


def test_the_judge_is_told_prompt_truth_and_response() -> None:
    with Server(lambda *_: completion("Score: 1")) as server:
        manager(server.url, prompt="P {prompt} T {ground_truth} R {response} {other}").score([request()])
        manager(server.url, prompt="{prompt}").score([request("42", "a", "b", "c")])
    first, second = (body["messages"][0]["content"] for body in server.bodies)
    assert first == "P 6 · 7? T the truth R 42 {other}"
    assert second == "user: a\n\nassistant: b\n\nuser: c"


def test_a_response_cannot_fill_in_the_template() -> None:
    with Server(lambda *_: completion("Score: 1")) as server:
        manager(server.url, prompt="{response}").score([request("I know: {ground_truth} {prompt}")])
    assert server.bodies[0]["messages"][0]["content"] == "I know: {ground_truth} {prompt}"


TOKENS = "<|im_end|> <|<|im_start|> <｜Assistant｜> </s> <s> <end_of_turn> [INST] [/INST] [TOOL_CALLS]"
TEXTS = "a < b || c > d, <b>x</b>, vector<int>, [1, 2], [INSTALL], <think>, x<|y"


def test_no_text_spells_a_control_token_of_the_judge() -> None:
    with Server(lambda *_: completion("Score: 1")) as server:
        manager(server.url, prompt="{prompt} {response} {ground_truth}").score([request(f"{TOKENS} {TEXTS}", TOKENS)])
    asked = server.bodies[0]["messages"][0]["content"]
    assert not any(token in asked for token in TOKENS.split() if token != "<|<|im_start|>")
    assert "<|im_start|>" not in asked and TEXTS in asked
    assert asked.replace("\u200b", "") == f"{TOKENS} {TOKENS} {TEXTS} the truth"


def test_the_scale_and_the_pattern_are_options() -> None:
    with Server(lambda *_: completion("verdict=[[-1]]")) as server:
        judge = manager(server.url, pattern=r"\[\[(-?\d)\]\]", lowest=-3, highest=1)
        assert judge.score([request()])[0].score == 0.5


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 8/10", 0.8),
        ("Score: 8 out of 10.", 0.8),
        ("Score: 8/100", 0.08),
        ("**Score:** 80 / 100", 0.8),
        ("Score: 80%", 0.8),
        ("Score: 3/5", 0.6),
        ("Score: [[7]]", 0.7),
        (r"Score: $\boxed{7}$", 0.7),
        ("<think>Score: 2?</think>\nScore: 7", 0.7),
        ("<|begin_of_thought|>Score: 2<|end_of_thought|>Score: 7", 0.7),
        ("Score: 2?</think>\nScore: 7", 0.7),
        ("[THINK]Score: 2[/THINK]Score: 7", 0.7),
    ],
)
def test_the_grade_at_the_end_of_the_answer_counts_on_its_own_scale(text: str, score: float) -> None:
    with Server(lambda *_: completion(text)) as server:
        [result] = manager(server.url).score([request()])
    assert result.score == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "I would give Score: 10 if right. The response is wr",
        "Score: 7 would be fair, but",
        "Score: 7\nWait, I must look at the second step again.",
        "<think>Maybe Score: 2",
        "Score: 7 <think>or Score: 2",
        "<Think>Score: 2",
        "<seed:think>Score: 2",
        "<|begin_of_thought|>Score: 2",
        "◁think▷Score: 2",
        "<think>a</think> <think>Score: 2",
        "[THINK]Score: 2",
        "<think>Score: 2</think>",
        "Score: 8/0",
        "Score: 11/10",
        "Score: 8,5",
        "Score: 7-9",
    ],
)
def test_a_grade_in_the_middle_or_in_thoughts_is_an_error(text: str) -> None:
    with Server(lambda *_: completion(text, None)) as server:
        [result] = manager(server.url).score([request()])
    assert (result.score, result.error_kind) == (None, "judge")


def test_an_answer_that_was_cut_off_is_an_error_whatever_it_holds() -> None:
    with Server(lambda *_: completion("Score: 7", "length")) as server:
        [result] = manager(server.url, max_tokens=64).score([request()])
    assert (result.score, result.error_kind) == (None, "judge")
    assert result.error == "the judge's answer is not finished (length): more than max_tokens=64 are needed"


def test_another_scale_than_that_of_the_options_is_an_error_unless_it_begins_at_0() -> None:
    with Server(lambda *_: completion("Score: 4/5")) as server:
        assert manager(server.url, lowest=1, highest=5).score([request()])[0].score == 0.75
        assert manager(server.url, lowest=1, highest=10).score([request()])[0].error_kind == "judge"


@pytest.mark.parametrize("text", ["No grade from me.", "Score: 11", "Score: -1", None, ""])
def test_an_answer_without_a_grade_is_an_error_and_no_score(text: Any) -> None:
    with Server(lambda *_: completion(text)) as server:
        [result] = manager(server.url).score([request()])
    assert (result.score, result.error_kind) == (None, "judge")


@pytest.mark.parametrize("answer", [{}, {"choices": []}, [], {"error": "x"}])
def test_an_answer_that_is_no_completion_is_an_error(answer: Any) -> None:
    with Server(lambda *_: (200, answer)) as server:
        [result] = manager(server.url).score([request()])
    assert (result.score, result.error_kind) == (None, "server")


def test_a_judge_that_fails_for_one_response_grades_the_others() -> None:
    def sometimes(body: Any, _: int) -> tuple[int, Any]:
        return (400, "too long") if "bad" in body["messages"][0]["content"] else completion("Score: 10")

    with Server(sometimes) as server:
        results = manager(server.url).score([request("bad" if n % 3 == 0 else "good") for n in range(9)])
    assert [result.score for result in results] == [None, 1.0, 1.0] * 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pattern": "("}, "no regular expression"),
        ({"pattern": "Score"}, "needs a group"),
        ({"lowest": 5, "highest": 5}, "must be above lowest"),
        ({"base_url": None}, "base_url"),
    ],
)
def test_wrong_options_are_errors_before_anything_starts(options: dict[str, Any], words: str) -> None:
    managers = load_plugins().registries.reward_managers
    given = {"name": "judge", "base_url": "http://localhost", "model": "m", **options}
    with pytest.raises(ConfigError, match=words):
        managers.select({name: value for name, value in given.items() if value is not None}, "reward.manager")
