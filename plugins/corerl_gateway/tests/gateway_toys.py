"""A policy that follows a script, and a model that records its requests; tokens are bytes."""

import asyncio
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp

from corerl.contracts.agents import Address, ChatReply
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.data.prompts import Prompt
from corerl.errors import DataError
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Node, Recorder, Services
from corerl_agents.chats import EpisodeChat, Templates
from corerl_agents.parsing import Parser, format_of
from corerl_agents.turns import TurnTokenizer
from corerl_gateway.dialects.routes import ModelList
from corerl_gateway.endpoint import HttpEndpoint
from corerl_gateway.options import EndpointOptions

END = 258
SPECIAL = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": END}
NAMES = {number: name for name, number in SPECIAL.items()}
MARKS = {259: b"<tool_call>", 260: b"</tool_call>"}
"""tokens that a test adds to the tokenizer of bytes; they are text"""
PIECES = re.compile("|".join(map(re.escape, SPECIAL)))


class Bytes:
    """A tokenizer of bytes, as ``corerl_testing`` writes it, without transformers, with tools and reasoning."""

    stop_token_ids, special_tokens = (END,), SPECIAL
    tokenizer = SimpleNamespace(get_chat_template=lambda tools: "<think> </think> <tool_call>")

    def __init__(self) -> None:
        self.encoded = 0
        """characters that were encoded so far"""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        self.encoded += sum(map(len, texts))
        return [list(ids_of(text)) for text in texts]

    encode_inside = encode

    def spelled(self, text: str) -> dict[str, int]:
        return {}

    def opening(self, token_ids: Sequence[int]) -> str:
        return ""

    def decode(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = True) -> list[str]:
        return [text_of(row, skip_special_tokens) for row in rows]

    def render(self, messages: Any, location: Any, *, add_generation_prompt: bool, template_kwargs: Any = None) -> str:
        if any(each["content"] == "refuse me" for each in messages):
            raise DataError("the chat template refuses the messages")
        text = render(messages, (template_kwargs or {}).get("tools", ()))
        return text + "<|im_start|>assistant\n" * add_generation_prompt


def ids_of(text: str) -> Iterator[int]:
    start = 0
    for found in PIECES.finditer(text):
        yield from text[start : found.start()].encode()
        yield SPECIAL[found[0]]
        start = found.end()
    yield from text[start:].encode()


def text_of(row: Sequence[int], skip: bool = True) -> str:
    parts = (NAMES[each].encode() * (not skip) if each in NAMES else MARKS.get(each) or bytes([each]) for each in row)
    return b"".join(parts).decode(errors="replace")


def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> str:
    """The template: tools, then every message."""
    head = f"<|im_start|>tools\n{json.dumps(tools)}<|im_end|>\n" if tools else ""
    return head + "".join(f"<|im_start|>{each['role']}\n{written(each)}<|im_end|>\n" for each in messages)


def written(message: Mapping[str, Any]) -> str:
    """A message as the policy writes it."""
    thought = message.get("reasoning_content")
    calls = [each["function"] for each in message.get("tool_calls") or ()]
    texts = [json.dumps({"name": each["name"], "arguments": each["arguments"]}, ensure_ascii=False) for each in calls]
    head = f"<think>{thought}</think>" if thought else ""
    return head + (message.get("content") or "") + "".join(f"<tool_call>{text}</tool_call>" for text in texts)


TOKENIZER = Bytes()
CHATS = functools.partial(
    EpisodeChat, templates=Templates(TurnTokenizer(TOKENIZER), Parser(TOKENIZER, format_of(TOKENIZER)))
)


class Script:
    """Samples texts in turn, the last of them for ever; each ends with the stop token. A text may be ids.

    Attributes:
        engine: (ids of a request, sampled ids), in the order of the answers.
        held: requests wait until it is set.
        cancelled: number of requests that were.
        seconds: of each request.
    """

    def __init__(self, *texts: str | Sequence[int], seconds: float = 0.0) -> None:
        self.texts, self.cancelled, self.seconds = texts, 0, seconds
        self.count, self.under_way, self.engine = 0, 0, []
        self.held: asyncio.Event | None = None

    async def complete(
        self, request: GenerationRequest, on_sent: Callable[[], None] = lambda: None
    ) -> list[Completion]:
        """In place of :meth:`corerl.rollout.request_queue.RequestQueue.complete`."""
        on_sent()
        text = self.texts[min(self.count, len(self.texts) - 1)]
        self.count += 1
        self.under_way += 1
        try:
            if self.held is not None:
                await self.held.wait()
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1
        whole = [*ids_of(text), END] if isinstance(text, str) else list(text)
        sampled = whole[: request.sampling.max_tokens]
        self.engine.append((tuple(request.prompt_ids), tuple(sampled)))
        log_probs = [-(1 + (token + len(request.prompt_ids)) % 7) / 8 for token in sampled]
        return [Completion(sampled, log_probs, "stop" if sampled and sampled == whole else "length", 0)]


class Recording(Recorder):
    """The recorder of an episode of a script.

    Attributes:
        asked: arguments of the chats.
    """

    def __init__(self, policy: Script, room: int = 4096) -> None:
        group = Group(Prompt(0, (1,), [], "acme", "", {}), 11, SamplingParams(room), "g", "b", 0)
        super().__init__(policy, TOKENIZER, group, 0, room, Services(chats=CHATS))
        self.policy = policy
        self.asked: list[Mapping[str, Any]] = []

    async def chat(self, messages: Any, **more: Any) -> ChatReply:
        self.asked.append({"messages": messages, **more})
        return await super().chat(messages, **more)

    @property
    def leaves(self) -> list[Node]:
        return [node for node in self.nodes if not node.children]

    def check(self) -> None:
        """The record holds exactly the tokens of the policy."""
        recorded = [(read_by(node), tuple(node.turn.token_ids)) for node in self.nodes]
        assert sorted(recorded) == sorted(self.policy.engine)
        assert self.failure is None


def read_by(node: Node) -> tuple[int, ...]:
    """The tokens of a recorded request."""
    before = node.path()[:-1]
    return (*(token for each in before for token in (*each.read, *each.turn.token_ids)), *node.read)


def read_text(node: Node) -> bytes:
    """The bytes that a request read behind its parent, special tokens left out."""
    return bytes(token for token in node.read if token < 256)


@asynccontextmanager
async def serving(*models: Any, sampling: Mapping[str, float] | None = None, **options: Any) -> Any:
    """(endpoint, addresses) of models."""
    endpoint = HttpEndpoint(EndpointOptions(**options), ModelList("tiny", 4096), sampling or {})
    try:
        yield endpoint, [endpoint.open(model) for model in models]
    finally:
        endpoint.close()


@asynccontextmanager
async def client(address: Address, **headers: str) -> Any:
    """An HTTP client with the key of an address."""
    own = {"Authorization": f"Bearer {address.api_key}", **headers}
    async with aiohttp.ClientSession(headers=own, timeout=aiohttp.ClientTimeout(20)) as session:
        yield session


async def post(address: Address, path: str, body: Any, status: int = 200) -> Any:
    """The JSON of an answer, whose status is checked."""
    async with client(address) as session, session.post(address.base_url + path, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def stream(address: Address, path: str, body: Any) -> list[Any]:
    """The events of an answer: JSON, or a text that is none."""
    async with client(address) as session, session.post(address.base_url + path, json=body) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        text = await response.text()
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def ask(model: Any, path: str, body: Any, status: int = 200, **options: Any) -> Any:
    """One request to a model of its own endpoint: the answer, or the events of a stream."""

    async def main() -> Any:
        async with serving(model, **options) as (_, [address]):
            if status == 200 and body.get("stream"):
                return await stream(address, path, body)
            return await post(address, path, body, status)

    return asyncio.run(asyncio.wait_for(main(), 30))
