"""Agents: code that plays an episode, with requests to the policy between its own work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig
    from corerl.contracts.tokenizers import ChatTokenizer


@dataclass(frozen=True)
class Task:
    """A row of the data. All episodes of the row share it: do not change it."""

    messages: Sequence[Mapping[str, Any]]
    """the row's ``prompt``"""
    ground_truth: Any
    data_source: str
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    prompt_ids: Sequence[int] = ()
    """``messages`` in the chat template, as token ids"""
    seed: int = 0
    """of all randomness of an episode; equal for all responses to one prompt"""


@dataclass(frozen=True)
class Sampled:
    """The answer to one request.

    Attributes:
        token_ids: the sampled tokens with the stop token; none if no room was left in ``data.max_response_length``.
        text: of these tokens, without special tokens.
        finish_reason: as of :class:`corerl.contracts.rollout_backends.Completion`.
        log_probs: of each token.
    """

    token_ids: Sequence[int]
    text: str
    finish_reason: Literal["stop", "length", "abort"]
    log_probs: Sequence[float] = ()


class Model(Protocol):
    """The policy, for one episode. It records the requests; they become one response, a row of the batch."""

    @property
    def tokenizer(self) -> "ChatTokenizer":
        """The policy's tokenizer with its chat template."""
        ...

    async def generate(self, token_ids: Sequence[int], *, max_tokens: int | None = None) -> Sampled:
        """Continue these tokens, one request at a time.

        The tokens of the first request are the prompt. Those of a later request begin with the tokens of the request
        before and its sampled tokens; the tokens that follow them are read by the policy and not trained.

        Args:
            max_tokens: 1 or more; None: all that ``data.max_response_length`` leaves. Tokens that were read count too.

        Raises:
            RunError: the tokens do not continue the recorded ones, or the prompt exceeds ``data.max_prompt_length``.
        """
        ...


@dataclass(frozen=True)
class AgentResult:
    """The end of an episode.

    Attributes:
        reward: finite; added to the scorer's score.
        components: named parts of the reward, for metrics; empty: the reward is the component ``agent``.
        metrics: name -> number, of which ``<name>/mean`` and ``<name>/max`` over episodes are reported, or name ->
            (sum, count), whose sums over episodes are divided. ``agent/`` precedes a name without a slash.
        messages: the conversation after the prompt, for sample rollouts; empty: the policy's turns.
        prompt: the messages of the first request; None: the row's.
        error: the reason, if the episode takes no part in training.
    """

    reward: float = 0.0
    components: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float | tuple[float, float]] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] = ()
    prompt: Sequence[Mapping[str, Any]] | None = None
    error: str | None = None


class Agent(Protocol):
    """One object a run. All episodes run in one event loop, so a call that blocks belongs in a thread."""

    async def run(self, task: Task, model: Model) -> AgentResult | None:
        """Play one episode. None: the scorer's score alone.

        An exception ends the episode, which takes no part in training.
        """
        ...


@runtime_checkable
class ClosingAgent(Agent, Protocol):
    """An agent that holds resources."""

    def close(self) -> None:
        """The run is over."""
        ...


@dataclass(frozen=True)
class AgentContext:
    """The surroundings of an agent.

    Attributes:
        tokenizer: of the policy.
        part: key of the config -> the part that it selects, of a kind that a plugin adds, ready for a call; None if the
            key selects none.
    """

    config: "TrainConfig"
    tokenizer: "ChatTokenizer"
    part: Callable[[str], Any] = lambda key: None


class AgentFactory(Protocol):
    """Makes the agent of a run: usually a class. With options it takes ``options``.

    An ``async`` function, called like :meth:`Agent.run`, is an agent without a factory.
    """

    def __call__(self, context: AgentContext) -> Agent: ...
