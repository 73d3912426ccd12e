"""Agents: code that plays an episode, with requests to the policy between its own work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig
    from corerl.contracts.token_columns import TokenValues
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
    tools: Sequence[Mapping[str, Any]] = ()
    """the row's, which ``prompt_ids`` show"""


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


@dataclass(frozen=True)
class ChatReply:
    """The policy's answer to a chat.

    Attributes:
        message: of the role ``assistant``, as OpenAI's chat completions have it: ``content``, ``tool_calls`` with JSON
            texts as arguments, and ``reasoning_content``; the last two only if the policy wrote some.
        sampled: the tokens behind it; no token if the context has no room for one.
        prompt_tokens: of the request, with those of earlier turns.
    """

    message: Mapping[str, Any]
    sampled: Sampled
    prompt_tokens: int


class Model(Protocol):
    """The policy, for one episode. It records the requests; requests may overlap.

    Every sampled token is trained once. Requests that continue each other become one row of the batch; a request that
    leaves the recorded tokens starts a branch, which becomes a row of its own.
    """

    @property
    def tokenizer(self) -> "ChatTokenizer":
        """The policy's tokenizer with its chat template."""
        ...

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        media: "Mapping[str, TokenValues] | None" = None,
    ) -> Sampled:
        """Continue these tokens.

        A request continues an earlier one if it begins with the earlier one's tokens and those that were sampled for
        it. The tokens of the first request are the prompt. Tokens of the request that were not sampled are read by the
        policy and not trained. A conversation has room for its first request (``data.max_prompt_length`` tokens at
        most count) and ``data.max_response_length`` further tokens, read ones included.

        Args:
            max_tokens: 1 or more; None: all that is left of the room.
            stop: texts; the sample ends with the token that completes the first of them.
            media: column (``images``) -> values of ``token_ids``, by the tokenizer (``encode_media``); None: those of
                the request that this one continues, or of the row.

        Raises:
            RefusedError: a token outside the vocabulary; a first request beyond ``data.max_prompt_length``, or another
                one that begins a conversation without room for an answer. Uncaught, it fails this episode alone.
            RunError: the engine failed.
        """
        ...

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> ChatReply:
        """Answer a chat; messages that continue a recorded chat continue its very tokens.

        Args:
            messages: as OpenAI's chat completions have them.
            tools: ``{"type": "function", "function": {"name", "description", "parameters"}}`` each.

        Raises:
            DataError: the chat template refuses the messages.
            RefusedError: as :meth:`generate`.
            RunError: as :meth:`generate`; or no plugin turns chats into tokens.
        """
        ...

    @property
    def base_url(self) -> str:
        """The address of this episode for HTTP clients, which ends in ``/v1``; it is served until the agent returns.

        Raises:
            RunError: no plugin serves an endpoint.
        """
        ...

    @property
    def api_key(self) -> str:
        """The key of the endpoint, of this episode alone."""
        ...


class Chat(Protocol):
    """The chats of one episode (:meth:`Model.chat`)."""

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> ChatReply: ...


@runtime_checkable
class MeasuredChat(Chat, Protocol):
    """Chats with numbers of their own."""

    @property
    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        """Of the episode so far, in the form of :attr:`AgentResult.metrics`."""
        ...


class ChatFactory(Protocol):
    """Makes the chats of an episode; they ask its model by :meth:`Model.generate` (hook ``make_chats``)."""

    def __call__(self, model: Model) -> Chat: ...


@dataclass(frozen=True)
class Address:
    """See :attr:`Model.base_url` and :attr:`Model.api_key`."""

    base_url: str
    api_key: str = field(repr=False)


class Endpoint(Protocol):
    """Serves models of episodes over HTTP (hook ``make_endpoint``). All calls are made in one event loop but ``close``.

    The endpoint listens once the first model is opened.
    """

    def open(self, model: Model) -> Address:
        """Serve a model under an address of its own."""
        ...

    def shut(self, address: Address) -> None:
        """Serve it no more; its requests under way are cancelled."""
        ...

    def close(self) -> None:
        """The run is over, and the event loop has ended."""
        ...


@dataclass(frozen=True)
class AgentResult:
    """The end of an episode.

    Attributes:
        reward: finite; added to the scorer's score.
        turn_rewards: finite, of the turns in the order of their requests, no more than there are; their sum is added to
            the score.
        components: named parts of the reward, for metrics; empty: the reward is the component ``agent``.
        metrics: name -> number, of which ``<name>/mean`` and ``<name>/max`` over episodes are reported, or name ->
            (sum, count), whose sums over episodes are divided. ``agent/`` precedes a name without a slash.
        messages: the conversation after the prompt, for sample rollouts; empty: the policy's turns.
        prompt: the messages of the first request; None: the row's.
        artifacts: name -> text, such as the output of a program, for sample rollouts.
        error: the reason, if the episode takes no part in training.
    """

    reward: float = 0.0
    turn_rewards: Sequence[float] = ()
    components: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float | tuple[float, float]] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] = ()
    prompt: Sequence[Mapping[str, Any]] | None = None
    artifacts: Mapping[str, str] = field(default_factory=dict)
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
