"""Base classes of verl's agent loops, for machines without verl.

A loop that begins with ``from verl.experimental.agent_loop.agent_loop import AgentLoopBase`` runs unchanged if verl is
installed. Without verl it begins with ``from corerl_verl.agent_loop import AgentLoopBase, AgentLoopOutput``.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class AgentLoopMetrics:
    """Seconds of an episode."""

    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    num_preempted: int = -1


@dataclass
class AgentLoopOutput:
    """The end of an episode; CoreRL has recorded the tokens and reads ``reward_score``, ``num_turns``, ``metrics``."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    response_mask: Sequence[int]
    response_logprobs: Sequence[float] | None = None
    multi_modal_data: dict[str, Any] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: Any = field(default_factory=AgentLoopMetrics)
    extra_fields: dict[str, Any] = field(default_factory=dict)


class AgentLoopBase:
    """verl's contract of an agent loop: one object an episode."""

    def __init__(
        self,
        trainer_config: Any,
        server_manager: Any,
        tokenizer: Any,
        processor: Any,
        dataset_cls: Any = None,
        data_config: Any = None,
        **_: Any,
    ) -> None:
        self.config, self.chats = trainer_config.config, trainer_config.chats
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.server_manager, self.tokenizer, self.processor = server_manager, tokenizer, processor
        self.dataset_cls, self.data_config = dataset_cls, data_config and data_config.config
        self.apply_chat_template_kwargs = dict(self.config.data.apply_chat_template_kwargs)
        self.loop = asyncio.get_running_loop()

    async def apply_chat_template(self, messages: list[dict[str, Any]], tools: Any = None, **_: Any) -> list[int]:
        """The token ids of a chat with the beginning of the assistant's turn; letters of control tokens stay text."""
        given = {**self.apply_chat_template_kwargs, **({"tools": tools} if tools else {})}
        text = self.chats.render(messages, "a chat of the loop", add_generation_prompt=True, template_kwargs=given)
        return list(self.chats.encode([text])[0])

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Play an episode; ``kwargs`` are the columns of the row."""
        raise NotImplementedError(f"{type(self).__name__}.run")


def register(agent_name: str) -> Callable[[type[AgentLoopBase]], type[AgentLoopBase]]:
    """verl's decorator; in CoreRL the YAML file names the class."""
    return lambda subclass: subclass
