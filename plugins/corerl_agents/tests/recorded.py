"""Chats with the real recorder and a scripted engine."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from corerl.contracts.rollout_backends import Completion, SamplingParams
from corerl.data.prompts import Prompt
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder, Services
from corerl_agents.chats import EpisodeChat, Templates
from corerl_agents.parsing import Parser, format_of
from corerl_agents.turns import TurnTokenizer


class Engine:
    """Answers each request with the next text of a script, or with ``answer(prompt ids)``; keeps both in ``asked``."""

    def __init__(
        self, tokenizer: Any, script: Sequence[str] = (), answer: Callable[[list[int]], list[int]] | None = None
    ):
        self._tokenizer, self._script = tokenizer, list(script)
        self._answer = answer or (lambda ids: tokenizer.encode([self._script.pop(0)])[0])
        self.asked: list[tuple[list[int], list[int]]] = []

    async def complete(self, request: Any, on_sent: Callable[[], None] = lambda: None) -> list[Completion]:
        on_sent()
        prompt = list(request.prompt_ids)
        ids = self._answer(prompt)[: request.sampling.max_tokens]
        await asyncio.sleep(0)
        self.asked.append((prompt, ids))
        ends = bool(ids) and ids[-1] in self._tokenizer.stop_token_ids
        return [Completion(ids, [-0.5] * len(ids), "stop" if ends else "length", 0)]


def model_of(
    tokenizer: Any, engine: Engine, room: int = 100_000, kwargs: Any = None, name: str | None = None
) -> Recorder:
    """The model of an episode, with chats; ``name`` is the format's."""
    turns = TurnTokenizer(tokenizer, kwargs)
    templates = Templates(turns, Parser(tokenizer, format_of(tokenizer, name)))
    group = Group(Prompt(0, (1,), [], "acme", "42", {}), 7, SamplingParams(room), "train-0", "train", 0)
    return Recorder(engine, tokenizer, group, 0, room, Services(lambda model: EpisodeChat(model, templates)))


def tool(name: str, **parameters: str) -> dict[str, Any]:
    """A tool with parameters of these types."""
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": f"does {name}", "parameters": schema}}


ADD = tool("add", a="integer", b="integer")
LOOK = tool("look_up", word="string")


def result(message: dict[str, Any], place: int, content: str) -> dict[str, Any]:
    """The answer to a call of an assistant's message."""
    call = message["tool_calls"][place]
    return {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": content}
