"""Environments: what answers the policy between its turns, with tools, a game or a simulated user."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from corerl.contracts.agents import Task


@dataclass(frozen=True)
class Start:
    """The beginning of an episode.

    Attributes:
        state: of the episode, for :meth:`Environment.step` alone.
        messages: the chat that the policy continues; None: the row's.
    """

    state: Any = None
    messages: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Turn:
    """The answer to one turn of the policy.

    Attributes:
        messages: input of the policy's next turn, each with ``role`` (of the chat template) and ``content``; at least
            one unless ``done``.
        reward: finite; the sum over the turns is the episode's.
        done: the episode is over.
        tool_calls, tool_errors: for the metrics: calls in this turn, and calls that failed by the policy's fault.
    """

    messages: Sequence[Mapping[str, Any]] = ()
    reward: float = 0.0
    done: bool = False
    tool_calls: int = 0
    tool_errors: int = 0


class Environment(Protocol):
    """One object a run; many episodes run at a time, each with its own state.

    ``reset`` and ``step`` may be ``async def`` (all in one event loop) or plain (each call in a thread, at most
    ``rollout.multi_turn.num_workers`` at a time). A call that raises, or exceeds ``rollout.multi_turn.tool_timeout``,
    ends its episode, which takes no part in training. A fault of the policy, such as a malformed call, belongs in a
    Turn.
    """

    def reset(self, task: Task, seed: int) -> Start | Awaitable[Start]:
        """Begin an episode.

        Args:
            seed: of all randomness in it; equal for all responses to one prompt.
        """
        ...

    def step(self, state: Any, response: str) -> Turn | Awaitable[Turn]:
        """Answer one turn of the policy; calls with the same ``state`` do not overlap.

        Args:
            response: text of this turn without special tokens; it may be cut off or empty.
        """
        ...

    def close(self) -> None:
        """The run is over."""
        ...


@runtime_checkable
class EndingEnvironment(Environment, Protocol):
    """An environment that closes an episode, for example its sandbox, or gives a final reward.

    ``end`` is plain or ``async def``, with the deadline of the other methods. If it fails, the episode has no score.
    """

    def end(self, state: Any) -> float | Awaitable[float | None] | None:
        """Called once for each episode, after its last turn, a limit or a failure; a late ``step`` may still be
        running.
        Returns:
            A finite final reward, or None.
        """
        ...


class EnvironmentFactory(Protocol):
    """Builds the environment of a run: usually a class. With options it takes ``options``."""

    def __call__(self) -> Environment: ...
