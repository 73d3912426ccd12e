"""Games of a few tokens, whose episodes can be listed.

A policy of a game is a table of logits: one row for each state in which it samples a token.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, combinations_with_replacement, groupby

import torch
from torch import Tensor

from corerl_testing.tensors import generator

END = -1


@dataclass(frozen=True)
class Reply:
    """One reply of the environment to a token of the policy.

    Attributes:
        chance: its probability; those of all replies to a token add up to 1.
        state: the next state of the policy, or END.
        reward: of this token.
        read: the tokens that the policy reads. If there is one, or at the end, the turn is over.
    """

    chance: float
    state: int
    reward: float = 0.0
    read: tuple[int, ...] = ()


@dataclass(frozen=True)
class Path:
    """An episode: its tokens, and of each the state that sampled it (END: the policy read it) and the reward."""

    chance: float = 1.0
    tokens: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    rewards: tuple[float, ...] = ()

    def then(self, state: int, token: int, reply: Reply) -> "Path":
        read = len(reply.read)
        return Path(
            self.chance * reply.chance,
            (*self.tokens, token, *reply.read),
            (*self.states, state, *[END] * read),
            (*self.rewards, reply.reward, *[0.0] * read),
        )


def paths(play: Callable[[int, int], Sequence[Reply]], tokens: int, state: int, path: Path = Path()) -> Iterator[Path]:
    """Every episode from a state on."""
    for token in range(tokens):
        for reply in play(state, token):
            longer = path.then(state, token, reply)
            yield from [longer] if reply.state == END else paths(play, tokens, reply.state, longer)


@dataclass(frozen=True)
class Game:
    """A game with S episodes of at most T tokens and K turns, and its tables.

    Attributes:
        play: (state, token) -> the replies; the first state is 0.
        states, vocabulary: numbers of states and of tokens that the policy samples.
        binary: every score is 0 or 1.
        turns: rewards are those of turns; otherwise an outcome score is on the last token of each episode.
        score: tokens of an episode -> its outcome score, on top of the rewards of tokens or turns.
    """

    name: str
    play: Callable[[int, int], Sequence[Reply]]
    states: int
    vocabulary: int
    binary: bool = False
    turns: bool = False
    score: Callable[[tuple[int, ...]], float] = field(default=lambda tokens: 0.0)

    @cached_property
    def paths(self) -> list[Path]:
        """All S episodes."""
        return list(paths(self.play, self.vocabulary, 0))

    def _table(self, rows: Sequence[Sequence[float]], padding: float, dtype: torch.dtype) -> Tensor:
        width = max(map(len, rows))
        return torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows], dtype=dtype)

    @cached_property
    def lengths(self) -> Tensor:
        """(S,) int64, read tokens included."""
        return torch.tensor([len(path.tokens) for path in self.paths])

    @cached_property
    def tokens(self) -> Tensor:
        """(S, T) int64, 0 behind an episode."""
        return self._table([path.tokens for path in self.paths], 0, torch.int64)

    @cached_property
    def at(self) -> Tensor:
        """(S, T) int64, the state that sampled a token; END elsewhere."""
        return self._table([path.states for path in self.paths], END, torch.int64)

    @cached_property
    def mask(self) -> Tensor:
        """(S, T) bool, true on tokens of the policy."""
        return self.at != END

    @cached_property
    def chances(self) -> Tensor:
        """(S,) float64, probability of the environment's part."""
        return torch.tensor([path.chance for path in self.paths], dtype=torch.float64)

    @cached_property
    def turn_ids(self) -> Tensor:
        """(S, T) int32, -1 at read tokens."""
        return self._table([_turns(path.states) for path in self.paths], -1, torch.int32)

    @cached_property
    def turn_rewards(self) -> Tensor:
        """(S, K) float64."""
        own = self._table([path.rewards for path in self.paths], 0, torch.float64)
        turns = self.turn_ids.long()
        table = torch.zeros(len(own), int(turns.max()) + 1, dtype=torch.float64)
        return table.scatter_add_(1, turns.clamp(min=0), torch.where(turns >= 0, own, 0.0))

    @cached_property
    def rewards(self) -> Tensor:
        """(S, T) float64: as the trainer has them, with a score, that of the turns included, on the last token."""
        own = self._table([path.rewards for path in self.paths], 0, torch.float64)
        scores = torch.tensor([self.score(path.tokens) for path in self.paths], dtype=torch.float64)
        if self.turns:
            scores, own = scores + own.sum(dim=1), torch.zeros_like(own)
        last = torch.where(self.mask, torch.arange(own.shape[1]), -1).max(dim=1).values
        return own.index_put((torch.arange(len(own)), last), scores, accumulate=True)

    @cached_property
    def scores(self) -> Tensor:
        """(S,) float64."""
        return self.rewards.sum(dim=1)

    @cached_property
    def components(self) -> Tensor:
        """(S, 3) float64: the score, another number, and a number of the prompt."""
        other = self.numbers(4, len(self.paths)).round(decimals=1)
        return torch.stack([self.scores, other, torch.full_like(other, 0.7)], dim=1)

    @cached_property
    def read_before(self) -> Tensor:
        """(S, K) int64: equal for turns before which the policy read the same tokens; -1: no such turn."""
        numbers: dict[tuple[int, ...], int] = {}
        rows = [[numbers.setdefault(read, len(numbers)) for read in _read(path)] for path in self.paths]
        return self._table(rows, -1, torch.int64)

    def logits(self, seed: int) -> Tensor:
        """(states, vocabulary) float64, a policy."""
        return 0.8 * torch.randn(self.states, self.vocabulary, generator=generator(seed), dtype=torch.float64)

    def numbers(self, seed: int, count: int) -> Tensor:
        """(count,) float64 in [-1, 1), for values, components and greedy scores."""
        return 2 * torch.rand(count, generator=generator(seed), dtype=torch.float64) - 1


def _turns(states: Sequence[int]) -> list[int]:
    """The turn of each token; a turn begins behind tokens that the policy read."""
    begins = [state != END and (place == 0 or states[place - 1] == END) for place, state in enumerate(states)]
    numbers = accumulate(begins)
    return [number - 1 if state != END else -1 for number, state in zip(numbers, states, strict=True)]


def _read(path: Path) -> list[tuple[int, ...]]:
    """Of each turn the tokens that the policy read just before it."""
    runs = [(own, [token for _, token in run]) for own, run in _runs(path)]
    reads = [tuple(run) for own, run in runs if not own]
    return [(), *reads][: sum(own for own, _ in runs)]


def _runs(path: Path) -> Iterator[tuple[bool, list[tuple[int, int]]]]:
    pairs = zip(path.states, path.tokens, strict=True)
    for own, run in groupby(pairs, key=lambda pair: pair[0] != END):
        yield own, list(run)


def groups(episodes: int, size: int) -> tuple[Tensor, Tensor]:
    """Every group of ``size`` episodes, in any order: (M, size) int64, and (M,) float64, how many orders it has."""
    found = list(combinations_with_replacement(range(episodes), size))
    orders = [math.factorial(size) / math.prod(math.factorial(each.count(one)) for one in set(each)) for each in found]
    return torch.tensor(found), torch.tensor(orders, dtype=torch.float64)


STOP = 2
_SCORES = (0.3, -0.5, 1.2, 0.0, 2.0, -1.1, 0.7, 1.6, -0.2)


def _two_tokens(state: int, token: int) -> list[Reply]:
    return [Reply(1.0, 1 + token if state == 0 else END)]


def _until_it_stops(state: int, token: int) -> list[Reply]:
    reward = 0.1 * (1 + state) * (token - 0.7)
    return [Reply(1.0, END if token == STOP or state else 1 + token, reward)]


def _silent_until_it_stops(state: int, token: int) -> list[Reply]:
    return [Reply(1.0, END if token == STOP or state else 1 + token)]


A, B = 7, 8
"""tokens that the policy reads"""


def _walk(state: int, token: int) -> list[Reply]:
    """Turns of one token: 0 risks more than 1, STOP ends. State 0 begins; 1 and 2 have read A and B."""
    if token == STOP:
        return [Reply(1.0, END, 0.2)]
    if state:
        return [Reply(1.0, END, (0.9, -0.4)[token] * state)]
    if token == 1:
        return [Reply(1.0, 2, 0.5, (B,))]
    return [Reply(0.7, 1, 1.0, (A,)), Reply(0.3, 2, -0.6, (B,))]


def _circle(state: int, token: int) -> list[Reply]:
    """As a walk, with turns of two tokens and states that recur: 3 and 4 have read A and B twice at most."""
    if state == 5:
        return [Reply(1.0, END, (0.4, -0.3, 0.8)[token])]
    if token == STOP:
        return [Reply(1.0, END, 0.1)]
    if state in (0, 1, 2):
        if token == 1:
            return [Reply(1.0, END, -0.5)] if state else [Reply(1.0, 1, 0.3, (A,))]
        return [Reply(0.6, 3, 1.1, (A,)), Reply(0.4, 4, -0.7, (B, B))] if state else [Reply(1.0, 2, 0.6, (B, B))]
    return [Reply(1.0, 5)] if token == 0 and state == 3 else [Reply(1.0, END, (0.5, -0.9)[token])]


def _score_of(tokens: tuple[int, ...]) -> float:
    return _SCORES[(tokens[0] * 3 + (tokens[1] if len(tokens) > 1 else 1)) % len(_SCORES)]


def _is_right(tokens: tuple[int, ...]) -> float:
    return float(sum(tokens) % 3 == 1)


GAMES = (
    Game("two tokens", _two_tokens, 4, 3, score=_score_of),
    Game("stop", _until_it_stops, 3, 3, score=_score_of),
    Game("two tokens, right or wrong", _two_tokens, 4, 3, binary=True, score=_is_right),
    Game("stop, right or wrong", _silent_until_it_stops, 3, 3, binary=True, score=_is_right),
    Game("turns", _walk, 3, 3, turns=True, score=lambda tokens: 0.5 * (tokens[-1] == 0)),
    Game("recurring turns", _circle, 6, 3, turns=True, score=lambda tokens: 0.5 * (tokens[-1] == 0)),
)
"""with equal lengths; with an end that the policy decides, rewarded at each token; both with scores of 0 and 1; with
turns in a stochastic environment, after each of which the policy may stop"""
