"""A response of a file as a conversation: messages of the policy and of others, with the times of its requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from corerl.batch.rollouts import RequestRecord
from corerl.batch.times import totals
from corerl_tools.episodes.messages import Spoken, spoken
from corerl_tools.episodes.times import Turn, turns

BOUNDED = ("requests", "branches", "artifacts")
"""columns with a largest number of elements"""


@dataclass(frozen=True)
class Asked:
    """A request of an episode and its times; None in a file that does not have it.

    Attributes:
        number: of the request.
        sampled: tokens.
        reward: of this turn.
    """

    number: int
    sampled: int
    request: RequestRecord | None = None
    times: Turn | None = None
    reward: float | None = None


@dataclass(frozen=True)
class Item:
    """A part of a conversation.

    Attributes:
        said: the message; its text is None if only the tokens have it.
        tokens: (first, last + 1) of its tokens in the row.
        asked: the request that sampled it.
    """

    said: Spoken
    tokens: tuple[int, int] | None = None
    asked: Asked | None = None


@dataclass(frozen=True)
class Side:
    """A branch of an episode.

    Attributes:
        number: 1, 2, …
        shared: tokens at its beginning that it has in common with the main row.
        after: the request that it continues; None: it begins anew.
        row: its columns of the file.
    """

    number: int
    shared: int
    after: int | None
    items: list[Item]
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """A response of a file.

    Attributes:
        prompt: its messages.
        seconds: of each kind of phase; empty without requests.
        left_out: the numbers of branches, requests and artifacts that the file does not have; '' if it has all.
    """

    prompt: list[Spoken]
    items: list[Item]
    branches: list[Side]
    requests: list[RequestRecord]
    seconds: Mapping[str, float]
    artifacts: Mapping[str, str]
    left_out: str


def conversation(row: Mapping[str, Any]) -> Conversation:
    """The conversation of a row of sample rollouts, or of ``corerl generate``.

    Raises:
        TypeError, ValueError, KeyError: the row is not of CoreRL.
    """
    prompt = row.get("prompt")
    chat = prompt if isinstance(prompt, list) else [{"role": "prompt", "content": prompt}]
    requests = [RequestRecord(**each) for each in row.get("requests") or ()]
    asked = _asked(requests, row.get("turn_rewards") or ())
    seconds = {name: float(value) for name, value in (row.get("seconds") or {}).items()}
    return Conversation(
        [spoken(each) for each in chat],
        _items(row, asked),
        [_side(number, each, asked, requests) for number, each in enumerate(row.get("branches") or (), 1)],
        requests,
        totals(requests, seconds) if requests or seconds else {},
        {str(name): str(text) for name, text in (row.get("artifacts") or {}).items()},
        ", ".join(f"{row[f'{each}_left_out']} {each}" for each in BOUNDED if row.get(f"{each}_left_out")),
    )


def _asked(requests: Sequence[RequestRecord], rewards: Sequence[float]) -> dict[int, Asked]:
    times = turns(requests)
    found = {number: Asked(number, each.sampled, each, times[number]) for number, each in enumerate(requests)}
    for number, reward in enumerate(rewards):
        known = found.get(number, Asked(number, 0))
        found[number] = Asked(number, known.sampled, known.request, known.times, float(reward))
    return found


def _items(row: Mapping[str, Any], asked: Mapping[int, Asked]) -> list[Item]:
    """The parts after the prompt.

    If the agent's messages have one of the policy for each of its turns, each gets the turn's request and tokens, and
    tokens that were read between two turns without a message between them become a part. Otherwise the tokens follow
    the messages.
    """
    messages = [spoken(each) for each in row.get("episode") or ()]
    runs = _runs(row.get("turn_runs") or (), asked)
    if not runs:
        if any(each.role == "assistant" for each in messages):
            return [Item(each) for each in messages]
        return [*map(Item, messages), Item(Spoken("response", str(row.get("response") or "")))]
    if sum(each.role == "assistant" for each in messages) != sum(run.asked is not None for run in runs):
        return [*map(Item, messages), *runs]
    items: list[Item] = []
    for message in messages:
        if message.role != "assistant":
            items.append(Item(message))
            continue
        while runs[0].asked is None:
            if items and items[-1].asked is not None:
                items.append(runs[0])
            runs = runs[1:]
        items.append(Item(message, runs[0].tokens, runs[0].asked))
        runs = runs[1:]
    return items


def _runs(turn_runs: Sequence[Sequence[int]], asked: Mapping[int, Asked]) -> list[Item]:
    """A part for each run of tokens."""
    ends = accumulate(length for _, length in turn_runs)
    found = []
    for (number, length), end in zip(turn_runs, ends, strict=True):
        if number < 0:
            found.append(Item(Spoken("read", ""), (end - length, end)))
        else:
            found.append(Item(Spoken("assistant", ""), (end - length, end), asked.get(number, Asked(number, length))))
    return found


def _side(
    number: int, branch: Mapping[str, Any], asked: Mapping[int, Asked], requests: Sequence[RequestRecord]
) -> Side:
    items = _runs(branch["turn_runs"], asked)
    if branch.get("token_texts") is None:
        first_asked = next((each.asked for each in items if each.asked is not None), None)
        items = [Item(Spoken("assistant", str(branch["response"])), None, first_asked)]
    if branch["prompt"]:
        items.insert(0, Item(Spoken("read", str(branch["prompt"]))))
    first = min((run for run, _ in branch["turn_runs"] if run >= 0), default=-1)
    after = requests[first].parent if 0 <= first < len(requests) else -1
    return Side(number, int(branch["shared"]), None if after < 0 else after, items, branch)
