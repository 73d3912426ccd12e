"""A model that is served outside a run: every request stands alone, with its own sampling."""

import dataclasses
import itertools
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from corerl.contracts.agents import ChatFactory, ChatReply, Sampled
from corerl.contracts.rollout_backends import SamplingParams
from corerl.contracts.token_columns import TokenValues
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.prompts import Prompt
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder
from corerl.rollout.request_queue import RequestQueue
from corerl_gateway.dialects.exchange import HARMLESS
from corerl_gateway.errors import ApiError, invalid, unsupported
from corerl_gateway.fields import MOST_TOP_K


@dataclasses.dataclass
class Serving:
    """The parts of every request.

    Attributes:
        sampling: of requests that set nothing.
        room: tokens of a request and its answer together.
    """

    queue: RequestQueue
    tokenizer: ChatTokenizer
    chats: ChatFactory | None
    sampling: SamplingParams
    room: int
    numbers: "itertools.count[int]" = dataclasses.field(default_factory=itertools.count)

    def __call__(self, sampling: Mapping[str, float]) -> "ServedModel":
        """The model of one request: a :data:`corerl_gateway.sessions.ModelSource`.

        Raises:
            ApiError: 400: a sampling parameter that is out of range, or unsupported.
        """
        return ServedModel(self, sampling_of(self.sampling, sampling))


class ServedModel:
    """See :class:`corerl.contracts.agents.Model`; requests do not continue each other."""

    base_url = api_key = ""

    def __init__(self, serving: Serving, sampling: SamplingParams) -> None:
        self.tokenizer = serving.tokenizer
        self._serving, self._sampling = serving, sampling
        self._samples = itertools.count()

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        media: Mapping[str, TokenValues] | None = None,
    ) -> Sampled:
        """See :meth:`corerl.contracts.agents.Model.generate`.

        Raises:
            ApiError: 400: there is no room for an answer.
        """
        if max_tokens == 0:
            return Sampled((), "", "length")
        room = self._serving.room - len(token_ids)
        if room < 1:
            whole = f"the request has {len(token_ids)} tokens, and {self._serving.room} are served with the answer"
            raise ApiError(400, f"{whole}: raise data.max_prompt_length", code="context_length_exceeded")
        sampling = dataclasses.replace(self._sampling, max_tokens=room)
        prompt = Prompt(0, tuple(token_ids), [], "served", "", {})
        name = f"served-{next(self._serving.numbers)}"
        group = Group(prompt, sampling.seed, sampling, name, name, 0)
        recorder = Recorder(self._serving.queue, self.tokenizer, group, next(self._samples), len(token_ids))
        return await recorder.generate(token_ids, max_tokens=max_tokens, stop=stop, media=media)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> ChatReply:
        """See :meth:`corerl.contracts.agents.Model.chat`."""
        if self._serving.chats is None:
            raise ApiError(501, "no installed plugin turns chats into tokens: pip install corerl-agents")
        chat = self._serving.chats(self)
        reply = await chat.complete(messages, tools=tools, max_tokens=max_tokens, stop=stop)
        return dataclasses.replace(reply, message=_with_new_ids(reply.message))


def _with_new_ids(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with ids of calls that no other request has: nine letters and digits, for templates of Mistral."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [{**call, "id": secrets.token_hex(5)[:9]} for call in message["tool_calls"]]}


def sampling_of(base: SamplingParams, given: Mapping[str, float]) -> SamplingParams:
    """The sampling of a request; without a seed a random one.

    Raises:
        ApiError: 400: a value is out of range, or its parameter unsupported.
    """
    for name in HARMLESS:
        if name in given:
            raise unsupported(name, "leave it out")
    temperature, top_p = given.get("temperature", base.temperature), given.get("top_p", base.top_p)
    top_k, seed = given.get("top_k", base.top_k), given.get("seed", secrets.randbits(62))
    for name, is_right, expected in (
        ("temperature", 0 <= temperature <= 100, "a number from 0 to 100"),
        ("top_p", 0 < top_p <= 1, "a number above 0, at most 1"),
        ("top_k", top_k == -1 or (1 <= top_k <= MOST_TOP_K and not top_k % 1), f"whole, 1 to {MOST_TOP_K}, or -1"),
        ("seed", 0 <= seed < 2**63 and not seed % 1, "a whole number, 0 to 2^63 - 1"),
    ):
        if not is_right:
            raise invalid(name, expected)
    return dataclasses.replace(base, temperature=temperature, top_p=top_p, top_k=int(top_k), seed=int(seed))
