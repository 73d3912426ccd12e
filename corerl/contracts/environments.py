"""Environments: what answers the policy between its turns, with tools, a game or a simulated user."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Task:
    """What a row of the data says; not to be changed, since all episodes of the row share it."""

    messages: Sequence[Mapping[str, Any]]
    """the row's ``prompt``"""
    ground_truth: Any
    data_source: str
    extra_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Start:
    """How an episode begins.

    Attributes:
        state: whatever :meth:`Environment.step` needs of this episode; nobody else looks at it.
        messages: the chat that the policy continues; None: the row's.
    """

    state: Any = None
    messages: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Turn:
    """The answer to one turn of the policy.

    Attributes:
        messages: what the policy reads next, each with ``role`` (as the chat template knows it) and ``content``. Not
            looked at in a turn that is done; else at least one.
        reward: finite; the rewards of an episode are added up.
        done: the episode is over.
        tool_calls, tool_errors: for the metrics: calls in this turn, and those that failed by the policy's fault.
    """

    messages: Sequence[Mapping[str, Any]] = ()
    reward: float = 0.0
    done: bool = False
    tool_calls: int = 0
    tool_errors: int = 0


class Environment(Protocol):
    """One object a run; many episodes are under way at a time, each with a state of its own.

    ``reset`` and ``step`` may be ``async def`` (all of a run's in one event loop) or plain (each call in a thread, at
    most ``rollout.multi_turn.num_workers`` at a time). A call that raises, or takes longer than
    ``rollout.multi_turn.tool_timeout``, ends its episode, which then takes no part in training: what is the policy's
    fault, such as a malformed call, belongs in a Turn.
    """

    def reset(self, task: Task, seed: int) -> Start | Awaitable[Start]:
        """Begin an episode.

        Args:
            seed: of everything random in it; the same for all responses to one prompt.
        """
        ...

    def step(self, state: Any, response: str) -> Turn | Awaitable[Turn]:
        """Answer one turn of the policy; called one after the other for the same ``state``.

        Args:
            response: what the policy wrote in this turn, special tokens left out; it may be cut off or empty.
        """
        ...

    def close(self) -> None:
        """The run is over."""
        ...


@runtime_checkable
class EndingEnvironment(Environment, Protocol):
    """One that learns when an episode is over, to close its sandbox or to give a last reward.

    ``end`` is plain or ``async def``, and has the deadline of the other methods. One that fails leaves the episode
    without a score, as a ``step`` does.
    """

    def end(self, state: Any) -> float | Awaitable[float | None] | None:
        """Called once for each episode that was begun, however it ended: done, by a limit, by a call that failed.

        A ``step`` that was given up as late may be running still.

        Returns:
            A last reward, which is finite, or None.
        """
        ...


class EnvironmentFactory(Protocol):
    """Builds the environment of a run: usually a class. With options it takes ``options``."""

    def __call__(self) -> Environment: ...
