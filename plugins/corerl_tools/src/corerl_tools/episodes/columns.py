"""The columns of an episode in files of responses; all of them are bounded."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from corerl.batch.rollouts import Branch, Episode, RequestRecord

MOST_CHARACTERS = 20_000
"""of an artifact, or of a branch's prompt or response"""
MOST_NAME = 200
MOST_BRANCHES, MOST_ARTIFACTS, MOST_REQUESTS = 32, 16, 1000
MOST_BRANCH_TOKENS = 4096
"""with their texts and log-probs, of each branch"""
DECIMALS = 6
"""of seconds"""

TokenTexts = Callable[[Sequence[Sequence[int]]], list[list[str]]]
"""rows of token ids -> the text of each token; joined, they are the row's text"""


def episode_columns(episode: Episode) -> dict[str, Any]:
    """The columns of an episode but its branches."""
    return {
        "episode": episode.messages,
        "environment_reward": episode.total_reward,
        "environment_error": episode.error,
        "turn_runs": turn_runs(episode.turn_ids),
        "turn_rewards": list(episode.turn_rewards),
        "requests": [_rounded(each) for each in episode.requests[:MOST_REQUESTS]],
        "requests_left_out": max(0, len(episode.requests) - MOST_REQUESTS),
        "seconds": {name: round(value, DECIMALS) for name, value in episode.seconds.items()},
        "artifacts": {
            shortened(name, MOST_NAME): shortened(text, MOST_CHARACTERS)
            for name, text in list(episode.artifacts.items())[:MOST_ARTIFACTS]
        },
        "artifacts_left_out": max(0, len(episode.artifacts) - MOST_ARTIFACTS),
        "branches_left_out": max(0, len(episode.branches) - MOST_BRANCHES),
    }


def branch_columns(
    branches: Sequence[Branch],
    row: Sequence[int],
    texts: TokenTexts,
    values: Sequence[Mapping[str, Sequence[float]]] | None,
) -> list[dict[str, Any]]:
    """The branches of an episode.

    Args:
        row: the tokens of its main row, prompt included.
        values: of the tokens of each branch, by column. None: without tokens, else the tokens of the response from
            ``start`` on have ``token_texts`` and these columns.

    Returns:
        For each branch ``shared``, the tokens at its beginning that it has in common with the main row; ``prompt`` and
        ``response``, the texts of the others; ``start``, the first token of ``response``; lengths in tokens.
    """
    kept = branches[:MOST_BRANCHES]
    return [_branch(branch, row, texts, None if values is None else values[at]) for at, branch in enumerate(kept)]


def turn_runs(turn_ids: Sequence[int]) -> list[list[int]]:
    """(number of the request that sampled them, tokens) of each run of tokens; -1: tokens that were read.

    >>> turn_runs([0, 0, -1, 1])
    [[0, 2], [-1, 1], [1, 1]]
    """
    runs = [[turn, len(list(run))] for turn, run in groupby(turn_ids)]
    return runs[: 2 * MOST_REQUESTS]


def shortened(text: str, most: int) -> str:
    """A text, with its middle left out if it is too long.

    >>> shortened("abcdefghij", 6)
    'abc … 4 characters … hij'
    """
    if len(text) <= most:
        return text
    head, tail = most - most // 2, most // 2
    return f"{text[:head]} … {len(text) - most} characters … {text[-tail:]}"


def _branch(
    branch: Branch, row: Sequence[int], texts: TokenTexts, values: Mapping[str, Sequence[float]] | None
) -> dict[str, Any]:
    completion, prompt = branch.completion, branch.prompt_ids
    shared = _common([*prompt, *completion.token_ids], row)
    start = max(0, shared - len(prompt))
    own, response = prompt[shared:], completion.token_ids[start:]
    of_prompt, of_response = texts([own, response])
    found: dict[str, Any] = {
        "shared": shared,
        "start": start,
        "prompt": shortened("".join(of_prompt), MOST_CHARACTERS),
        "response": shortened("".join(of_response), MOST_CHARACTERS),
        "prompt_length": len(prompt),
        "response_length": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "weight_version": completion.weight_version,
        "turn_runs": turn_runs(branch.turn_ids[start:]),
    }
    if values is not None:
        kept = slice(start, start + MOST_BRANCH_TOKENS)
        found |= {name: list(column[kept]) for name, column in values.items()}
        found["token_texts"] = of_response[:MOST_BRANCH_TOKENS]
    return found


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of equal elements at the beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _rounded(request: RequestRecord) -> Mapping[str, Any]:
    values = dataclasses.asdict(request)
    return {name: round(each, DECIMALS) if isinstance(each, float) else each for name, each in values.items()}
