"""Parts of chats that all episodes of a run share."""

import re

from corerl.data import Message
from corerl_agents.chats.messages import reasoning_of
from corerl_agents.parsing import Parser
from corerl_agents.parsing.parser import template_text
from corerl_agents.turns import TurnTokenizer


class Templates:
    """The chat template of a model, and the parser of its turns."""

    def __init__(self, turns: TurnTokenizer, parser: Parser) -> None:
        self.turns, self.parser = turns, parser
        tokens = sorted(turns.tokenizer.special_tokens, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, tokens)) or "(?!)")
        self._roles = {} if "developer" in template_text(turns.tokenizer) else {"developer": "system"}

    def shown(self, message: Message) -> Message:
        """A message as the template takes it: its reasoning under the template's name, its role a known one."""
        role, reasoning = message["role"], reasoning_of(message)
        if not reasoning and role not in self._roles:
            return message
        shown = {**message, "role": self._roles.get(role, role)}
        if self.turns.reasoning_key is not None and reasoning:
            shown[self.turns.reasoning_key] = reasoning
        return shown

    def without_special(self, text: str) -> str:
        """A text for a client."""
        return self._special.sub("", text)
