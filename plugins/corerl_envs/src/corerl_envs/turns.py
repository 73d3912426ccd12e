"""The tokens between two turns of the policy; generated tokens are never tokenised again."""

from collections.abc import Mapping, Sequence
from typing import Any

from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data import Location, Message

_PROBE = "corerl\ue000turn"


class TurnTokenizer:
    """Encodes the messages of an environment, alone, with the text of the chat template around them.

    The template renders the conversation with a probe as the policy's last turn; the text behind the probe is encoded
    and appended to the generated token ids. The policy is therefore trained on the ids that it generated from, even if
    the template rewrites earlier turns (leaves out their reasoning, for example).
    """

    def __init__(self, tokenizer: ChatTokenizer, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self._template_kwargs = template_kwargs or {}

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The templated chat, up to the response.

        Raises:
            DataError: the template refuses the messages.
        """
        return tuple(self._tokenizer.encode([self._render(messages)])[0])

    def between(self, history: Sequence[Message], replies: Sequence[Message], last_token_id: int) -> tuple[int, ...]:
        """The tokens behind a turn of the policy, up to its next turn.

        Args:
            history: the messages before that turn.
            replies: the messages after it.
            last_token_id: of the turn. If the template ends a turn with this token, the token is not repeated.

        Raises:
            DataError: the template refuses the messages.
        """
        text = self._render([*history, {"role": "assistant", "content": _PROBE}, *replies])
        after = text.rpartition(_PROBE)[2]
        begun = after.lstrip()
        for token, token_id in self._tokenizer.special_tokens.items():
            if token_id == last_token_id and begun.startswith(token):
                after = begun.removeprefix(token)
        return tuple(self._tokenizer.encode_inside([after])[0])

    def text(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of token ids, special tokens left out."""
        return self._tokenizer.decode(token_ids)

    @property
    def end_token_id(self) -> int:
        """The end-of-sequence token."""
        return self._tokenizer.stop_token_ids[0]

    def _render(self, messages: Sequence[Message]) -> str:
        return self._tokenizer.render(
            messages,
            Location("an episode", len(messages)),
            add_generation_prompt=True,
            template_kwargs=self._template_kwargs,
        )
