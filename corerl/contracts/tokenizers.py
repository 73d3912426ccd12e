"""Tokenizers of models with their chat templates; a plugin loads them (hook ``load_tokenizer``)."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


class ChatTokenizer(Protocol):
    """A tokenizer with a chat template and an end-of-sequence token."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer as its library has it, for ``data.custom_cls``."""

    @property
    def template_source(self) -> str:
        """The folder or the file of the chat template, for error messages."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a response, the end-of-sequence token first."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text -> id of the special tokens."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        location: object,
        *,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The chat as text, special tokens included.

        Args:
            location: the place of the chat, for error messages.

        Raises:
            ConfigError: ``template_kwargs`` has an argument that is no variable of a template.
            DataError: the template refuses the messages.
        """

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, with no special tokens but those written in it."""

    def encode_inside(self, texts: Sequence[str]) -> list[list[int]]:
        """As :meth:`encode`, for texts from the middle of a chat: no space is put before them."""

    def decode(self, token_ids: Sequence[Sequence[int]], *, skip_special_tokens: bool = True) -> list[str]:
        """The text of each row of token ids."""

    def unheeded_end_of_turn(self) -> str | None:
        """The special token at the end of an assistant's turn, if it stops no generation."""

    def model_files(self) -> dict[str, bytes]:
        """Name -> content of the model's files beside weights: config, generation config, tokenizer."""


@runtime_checkable
class SizedTokenizer(Protocol):
    """A tokenizer that knows the vocabulary of its model."""

    @property
    def vocabulary_size(self) -> int | None:
        """Token ids below are those of the model; None: unknown."""
        ...
