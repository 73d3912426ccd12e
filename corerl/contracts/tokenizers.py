"""Tokenizers of models with their chat templates; a plugin loads them (hook ``load_tokenizer``)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from corerl.contracts.token_columns import TokenValues


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
        """Tokens that end a response, the one that ends a turn of the chat template first."""

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

        Letters in messages and tools that spell a control token are marked, so that :meth:`encode` makes no token of
        them. Arguments of tool calls may be objects or JSON texts.

        Args:
            location: the place of the chat, for error messages.

        Raises:
            ConfigError: ``template_kwargs`` has an argument that is no variable of a template.
            DataError: the template refuses the messages.
        """

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, with no special tokens but those written in it and not marked."""

    def encode_inside(self, texts: Sequence[str]) -> list[list[int]]:
        """As :meth:`encode`, for texts from the middle of a chat: no space is put before them."""

    def spelled(self, text: str) -> Mapping[str, int]:
        """Control token -> how often messages of a rendered chat spell it; these letters are marked."""

    def unmarked(self, text: str) -> str:
        """A rendered chat as people read it."""

    def opening(self, token_ids: Sequence[int]) -> str:
        """The text at the end of a prompt that opens the reasoning of the response; '' without one."""

    def decode(self, token_ids: Sequence[Sequence[int]], *, skip_special_tokens: bool = True) -> list[str]:
        """The text of each row of token ids."""

    def end_of_turn_fault(self) -> str | None:
        """Why responses may never end: the chat template ends a turn with no stop token of the model.

        Raises:
            ModelError: the template is empty.
        """

    def model_files(self) -> dict[str, bytes]:
        """Name -> content of the model's files beside weights: config, generation config, tokenizer."""


@runtime_checkable
class SizedTokenizer(Protocol):
    """A tokenizer that knows the vocabulary of its model."""

    @property
    def vocabulary_size(self) -> int | None:
        """Token ids below are those of the model; None: unknown."""
        ...


@runtime_checkable
class MediaTokenizer(Protocol):
    """A tokenizer of a model that reads images: it also processes them, once.

    An image is a value of a column of tokens, at the first of the tokens that stand for it. The value names the
    processed image for engine and trainer.
    """

    def place_media(
        self, messages: Sequence[Mapping[str, Any]], media: Mapping[str, Any], location: object
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Process the media, and put a reference to each in the place of its ``<image>`` in the texts.

        Args:
            media: column of the row -> content, as read; may be empty.
            location: the place of the chat, for error messages; its folder has the files that a row may name.

        Returns:
            (messages with parts ``{"type": "image", "image": reference}``, column -> references).

        Raises:
            DataError: there are more or fewer marks than media, or one cannot be read.
        """
        ...

    def encode_media(
        self, text: str, media: Mapping[str, Any], location: object, *, inside: bool = False
    ) -> "tuple[list[int], Mapping[str, TokenValues]]":
        """Token ids of a rendered text, and column (``images``) -> values of these tokens.

        Args:
            media: column -> references, in the order of the text; or contents of media.
            inside: the text is from the middle of a chat.

        Raises:
            DataError: the media do not fit the text, or cannot be read.
        """
        ...
