"""Rollouts: what scorers are asked about each of them."""

import pytest

from corerl.batch.rollouts import Rollouts
from corerl.contracts.reward_managers import RewardRequest
from corerl.contracts.rollout_backends import Completion
from corerl.data.prompts import Prompt


def test_a_scorer_is_asked_with_all_that_is_known_of_a_response():
    chats = [[{"role": "user", "content": text}] for text in ("1+1", "2+2")]
    prompts = [Prompt(index, (1, 2), chat, f"s{index}", str(index), {"n": index}) for index, chat in enumerate(chats)]
    completions = [Completion([3, 4], [-0.5, -0.5], "length", 0), Completion([5], [-0.5], "stop", 0)]
    rollouts = Rollouts(prompts, completions, ["two", "four"], [0, 1])
    assert rollouts.reward_requests(9) == [
        RewardRequest(
            response=("two", "four")[row],
            ground_truth=str(row),
            data_source=f"s{row}",
            extra_info={"n": row},
            response_length=(2, 1)[row],
            max_response_length=9,
            truncated=(True, False)[row],
            prompt=chats[row],
        )
        for row in (0, 1)
    ]


def test_rollouts_of_which_some_have_no_text_are_an_error():
    prompt = Prompt(0, (1, 2), [], "s", "4", {})
    with pytest.raises(ValueError, match="shorter"):
        Rollouts([prompt] * 2, [Completion([3], [-0.5], "stop", 0)] * 2, ["two"], [0, 0]).reward_requests(9)


def test_a_response_begins_with_the_tag_that_its_prompt_opens():
    """Cut off in its thoughts, it has no answer outside of them."""
    prompts = [Prompt(0, (1,), [], "s", "4", {}, opening="<think>\n"), Prompt(1, (1,), [], "s", "4", {})]
    completion = Completion([3], [-0.5], "length", 0)
    rollouts = Rollouts.collect(prompts, [[completion], [completion]], lambda rows: ["4"] * len(rows))
    assert [request.response for request in rollouts.reward_requests(9)] == ["<think>\n4", "4"]
