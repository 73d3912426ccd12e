"""The requests of one episode, as a tree: a request continues the one that it begins with, or starts a branch."""

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from corerl.contracts.agents import Address, Chat, ChatFactory, ChatReply, Endpoint, MeasuredChat, Sampled
from corerl.contracts.rollout_backends import Completion, GenerationRequest
from corerl.contracts.token_columns import TokenValues
from corerl.contracts.tokenizers import ChatTokenizer, SizedTokenizer
from corerl.contracts.workers import Requests
from corerl.errors import RefusedError, RunError, TooLongError
from corerl.rollout.groups import Group
from corerl.seeding import derived_seed

LARGEST_VOCABULARY = 2**63
"""of a tokenizer that does not know its size: ids are recorded in 64 bits"""


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """An answered request.

    Attributes:
        number: of the request in its episode, in the order of asking.
        parent: the request that it continues.
        read: tokens behind the parent's; of a request without a parent all of its tokens.
        seed: of the sample.
        turn: the sample.
        text: of the sample, without special tokens.
        room: tokens that fit into its conversation behind it.
        media: of the request.
        times: of asking, sending and the answer, in seconds since the episode began.
        is_full: a later request found no room behind it.
    """

    number: int
    parent: "Node | None"
    read: list[int]
    seed: int
    turn: Completion
    text: str
    room: int
    times: tuple[float, float, float]
    media: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    children: "list[Node]" = dataclasses.field(default_factory=list)
    is_full: bool = False

    def path(self) -> "list[Node]":
        """From the first request of the conversation to this one."""
        nodes = [self]
        while (parent := nodes[-1].parent) is not None:
            nodes.append(parent)
        return nodes[::-1]


@dataclasses.dataclass(frozen=True)
class Services:
    """Plugins' parts around a model.

    Attributes:
        chats: turns chats into tokens.
        endpoint: serves the model over HTTP.
    """

    chats: ChatFactory | None = None
    endpoint: Endpoint | None = None


class Recorder:
    """The policy, for one episode (:class:`corerl.contracts.agents.Model`), and the requests so far.

    Args:
        sample: the episode's number in its group.
        max_prompt_length: ``data.max_prompt_length``.

    Attributes:
        nodes: answered requests, in the order of their answers.
        failure: of a request; the agent cannot hide it.
        refusal: of the last request, if it was refused.
    """

    def __init__(
        self,
        queue: Requests,
        tokenizer: ChatTokenizer,
        group: Group,
        sample: int,
        max_prompt_length: int,
        services: Services | None = None,
    ) -> None:
        self.tokenizer, self.group = tokenizer, group
        self.nodes: list[Node] = []
        self.failure: Exception | None = None
        self.refusal: RefusedError | None = None
        self.began = time.time()
        self._start = time.perf_counter()
        self._queue, self._sample = queue, sample
        self._max_prompt_length = max_prompt_length
        self._services = services or Services()
        self._roots: list[Node] = []
        self._asked = 0
        self._first_seed = derived_seed(group.seed, sample.to_bytes(8, "little"))
        self._same: Counter[int] = Counter()
        """seed -> equal requests so far"""
        self._chat: Chat | None = None
        self._address: Address | None = None
        self._is_over = False

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        media: Mapping[str, TokenValues] | None = None,
    ) -> Sampled:
        """See :meth:`corerl.contracts.agents.Model.generate`."""
        try:
            sampled = await self._generate(list(token_ids), max_tokens, stop, media)
            self.refusal = None
            return sampled
        except RefusedError as error:
            self.refusal = error
            raise
        except Exception as error:
            self.failure = self.failure or error
            raise

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> ChatReply:
        """See :meth:`corerl.contracts.agents.Model.chat`."""
        if self._chat is None:
            if self._services.chats is None:
                raise RunError("no installed plugin turns chats into tokens: pip install corerl-agents")
            self._chat = self._services.chats(self)
        return await self._chat.complete(messages, tools=tools, max_tokens=max_tokens, stop=stop)

    @property
    def chat_metrics(self) -> Mapping[str, float | tuple[float, float]]:
        """Numbers of the chats; none without a chat."""
        return self._chat.metrics if isinstance(self._chat, MeasuredChat) else {}

    @property
    def base_url(self) -> str:
        """See :attr:`corerl.contracts.agents.Model.base_url`."""
        return self._served().base_url

    @property
    def api_key(self) -> str:
        """See :attr:`corerl.contracts.agents.Model.api_key`."""
        return self._served().api_key

    def _served(self) -> Address:
        if self._address is None:
            if self._services.endpoint is None:
                raise RunError("no installed plugin serves an endpoint for agents: pip install corerl-gateway")
            self._address = self._services.endpoint.open(self)
        return self._address

    def end(self) -> None:
        """Refuse further requests: the agent has returned."""
        self._is_over = True
        if self._address is not None and self._services.endpoint is not None:
            self._services.endpoint.shut(self._address)

    async def _generate(
        self,
        token_ids: list[int],
        max_tokens: int | None,
        stop: Sequence[str],
        given: Mapping[str, TokenValues] | None,
    ) -> Sampled:
        if self._is_over:
            raise RunError("an agent sent a request after its episode's end")
        if max_tokens == 0:
            return Sampled((), "", "length")
        parent, read = self._continued(token_ids, given)
        media = self._media(parent, token_ids) if given is None else given
        self._check_vocabulary(read)
        room = self._room(parent, read)
        if room < 1:
            if parent is not None:
                parent.is_full = True
            return Sampled((), "", "length")
        number, name = self._asked, f"{self.group.name}.{self._sample}"
        self._asked += 1
        seed = self._seed(parent, read, media)
        sampling = dataclasses.replace(
            self.group.sampling,
            n=1,
            seed=seed,
            max_tokens=min(room, max_tokens or room),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
        )
        request = GenerationRequest(f"{name}-{number}", token_ids, sampling, media, session=name)
        asked, sent = self._now(), [0.0]

        def on_sent(ago: float = 0.0) -> None:
            sent[0] = self._now() - ago
            self.group.on_begin()

        [turn] = await self._queue.complete(request, on_sent)
        turn = turn.until(sampling.stop, self.tokenizer.decode)
        [text] = self.tokenizer.decode([turn.token_ids])
        times = (asked, sent[0], self._now())
        self._add(Node(number, parent, read, seed, turn, text, room - len(turn.token_ids), times, media))
        return Sampled(turn.token_ids, text, turn.finish_reason, turn.log_probs)

    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _continued(
        self, token_ids: list[int], media: Mapping[str, TokenValues] | None
    ) -> tuple[Node | None, list[int]]:
        """The request with the longest path that begins ``token_ids``, and the tokens behind that path."""
        parent, end = _longest(self._roots, token_ids, 0, media)
        return parent, token_ids[end:]

    def _media(self, parent: Node | None, token_ids: list[int]) -> dict[str, Any]:
        """Of a request without media of its own: those of the request that it continues, or of the prompt."""
        own = self.group.prompt
        known = own.media if parent is None else parent.media
        if parent is None and token_ids[: len(own.token_ids)] != list(own.token_ids):
            known = {name: value for name, value in known.items() if not isinstance(value, TokenValues)}
        return {
            name: value.widened(len(token_ids) - len(value)) if isinstance(value, TokenValues) else value
            for name, value in known.items()
        }

    def _check_vocabulary(self, read: Sequence[int]) -> None:
        own = self.tokenizer.vocabulary_size if isinstance(self.tokenizer, SizedTokenizer) else None
        size = LARGEST_VOCABULARY if own is None else own
        if read and not 0 <= min(read) <= max(read) < size:
            wrong = next(each for each in read if not 0 <= each < size)
            raise RefusedError(f"token id {wrong} is outside the model's vocabulary of {size}")

    def _room(self, parent: Node | None, read: Sequence[int]) -> int:
        """Tokens that may be sampled; the prompt of a conversation counts with ``data.max_prompt_length`` at most.

        Raises:
            TooLongError: the first request of the episode is longer, or one that begins a conversation has no room.
        """
        if parent is not None:
            return parent.room - len(read)
        own = self.group.prompt.token_ids
        if not self._asked and len(read) > self._max_prompt_length and read != list(own):
            raise TooLongError(
                f"an episode began with {len(read)} tokens, more than data.max_prompt_length = "
                f"{self._max_prompt_length}: raise it, or shorten the first request"
            )
        begins, further = max(self._max_prompt_length, len(own)), self.group.sampling.max_tokens
        if len(read) >= begins + further:
            raise TooLongError(
                f"a request of {len(read)} tokens has no room for an answer: a conversation has at most "
                f"{begins + further} tokens (data.max_prompt_length + data.max_response_length)"
            )
        return further - max(0, len(read) - begins)

    def _seed(self, parent: Node | None, read: Sequence[int], media: Mapping[str, Any]) -> int:
        """A function of what the request reads, its conversation before, and the number of equal requests before it."""
        before = self._first_seed if parent is None else parent.seed
        columns = [media[name].values for name in sorted(media) if isinstance(media[name], TokenValues)]
        seed = derived_seed(before, *(np.asarray(each).tobytes() for each in [np.array(read, "<i8"), *columns]))
        again, self._same[seed] = self._same[seed], self._same[seed] + 1
        return derived_seed(seed, bytes([0]) * again) if again else seed

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        (self._roots if node.parent is None else node.parent.children).append(node)


def _longest(
    nodes: Iterable[Node], token_ids: list[int], start: int, media: Mapping[str, TokenValues] | None
) -> tuple[Node | None, int]:
    """The request with the longest path from ``nodes`` on that stands in ``token_ids`` at ``start``, and its end.

    Args:
        media: of ``token_ids``; None: those of the found request.
    """
    best: tuple[Node | None, int] = (None, start)
    for node in nodes:
        middle = start + len(node.read)
        end = middle + len(node.turn.token_ids)
        if token_ids[start:middle] == node.read and token_ids[middle:end] == list(node.turn.token_ids):
            if media is not None and not _agree(media, node.media, middle):
                continue
            found, further = _longest(node.children, token_ids, end, media)
            if further > best[1]:
                best = found or node, further
    return best


def _agree(media: Mapping[str, TokenValues], others: Mapping[str, Any], tokens: int) -> bool:
    """Whether the first tokens of two requests have the same media."""
    columns = [
        {name: each.cut(0, tokens) for name, each in both.items() if each.counts.any()} for both in (media, others)
    ]
    one, two = ({name: each for name, each in both.items() if len(each.values)} for both in columns)
    return one.keys() == two.keys() and all(each.equals(two[name]) for name, each in one.items())
