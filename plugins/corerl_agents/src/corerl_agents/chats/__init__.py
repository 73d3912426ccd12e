"""Chats of agents as token ids: what the policy sampled is never tokenised again."""

import functools
from typing import TYPE_CHECKING

from corerl.contracts.agents import ChatFactory
from corerl.contracts.tokenizers import ChatTokenizer
from corerl_agents.chats.chat import EpisodeChat
from corerl_agents.chats.templates import Templates
from corerl_agents.parsing import Parser, format_of
from corerl_agents.turns import TurnTokenizer

if TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig

__all__ = ["EpisodeChat", "Templates", "make_chats", "make_templates"]


def make_chats(config: "TrainConfig", tokenizer: ChatTokenizer) -> ChatFactory:
    """The chats of a run's episodes."""
    return functools.partial(EpisodeChat, templates=make_templates(config, tokenizer))


def make_templates(config: "TrainConfig", tokenizer: ChatTokenizer) -> Templates:
    """The chat template of a run, and the parser of the policy's turns."""
    turns = TurnTokenizer(tokenizer, config.data.apply_chat_template_kwargs)
    return Templates(turns, Parser(tokenizer, format_of(tokenizer, config.rollout.multi_turn.format)))
