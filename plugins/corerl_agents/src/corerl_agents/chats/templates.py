"""Parts of chats that all episodes of a run share."""

import itertools
import re
from collections.abc import Sequence

from corerl.data import Message
from corerl.terminal import say
from corerl_agents.chats.messages import reasoning_of
from corerl_agents.parsing import Parsed, Parser
from corerl_agents.parsing.parser import template_text
from corerl_agents.turns import TurnTokenizer

MARK = "\ue0a5\ue0a6"
"""between the first character of a spelled control token and the others"""


class Templates:
    """The chat template of a model, and the parser of its turns."""

    def __init__(self, turns: TurnTokenizer, parser: Parser) -> None:
        self.turns, self.parser = turns, parser
        special = turns.tokenizer.special_tokens
        self._numbers = {token_id: text for text, token_id in special.items()}
        tokens = sorted(filter(None, special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, tokens)) or "(?!)")
        self._shows_missed = True
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

    def show_missed(self, parsed: Parsed) -> None:
        """Print the first turn with calls that the format does not read."""
        if self._shows_missed:
            self._shows_missed = False
            say(
                f"a tool call of the policy stays text: it has not the spelling of format '{self.parser.name}', but "
                f"that of '{parsed.spelling}' (agent/missed_calls counts such calls; with rollout.multi_turn.format="
                f"{parsed.spelling} they are read): {parsed.content!r:.300}"
            )

    def written(self, token_ids: Sequence[int]) -> str:
        """The text of the policy's tokens, with a mark in letters that only spell a control token."""
        decode, numbers = self.turns.tokenizer.decode, self._numbers
        [text] = decode([list(token_ids)], skip_special_tokens=False)
        controls = [place for place, token in enumerate(token_ids) if token in numbers]
        if len(self._special.findall(text)) <= len(controls):
            return text
        runs = [list(token_ids[start:end]) for start, end in itertools.pairwise([0, *controls, len(token_ids)])]
        texts = decode(runs, skip_special_tokens=False)
        begins = ["", *(numbers[token_ids[place]] for place in controls)]
        return "".join(begin + self.spelled(run.removeprefix(begin)) for begin, run in zip(begins, texts, strict=True))

    def spelled(self, text: str) -> str:
        """Letters of the policy, with a mark in each control token that they spell."""
        return self._special.sub(lambda found: f"{found[0][:1]}{MARK}{found[0][1:]}", text)

    def for_client(self, text: str) -> str:
        """A text of :meth:`written` without control tokens."""
        return self._special.sub("", text).replace(MARK, "")
