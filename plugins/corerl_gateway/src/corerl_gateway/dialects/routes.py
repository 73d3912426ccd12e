"""The dialect of a path."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from corerl_gateway.dialects.chat_completions import ChatCompletions
from corerl_gateway.dialects.exchange import Exchange
from corerl_gateway.dialects.messages import Messages, TokenCount
from corerl_gateway.dialects.responses import Responses
from corerl_gateway.dialects.tokens import Tokens

MODELS = "v1/models"
ROUTES: Mapping[str, type[Exchange]] = {
    "v1/chat/completions": ChatCompletions,
    "v1/responses": Responses,
    "v1/messages": Messages,
    "v1/messages/count_tokens": TokenCount,
    "inference/v1/generate": Tokens,
    "v1/inference/v1/generate": Tokens,
}
"""path behind the episode's part -> dialect of POST; ``v1/models`` is the only path of GET"""


def dialect_of(path: str) -> type[Exchange]:
    """The dialect of errors at a path; that of chat completions for unknown ones."""
    return ROUTES.get(path, ChatCompletions)


def split(path: str) -> tuple[str, str]:
    """(the episode's part, the path behind it).

    >>> split("/3f/v1/models"), split("/v1/models"), split("/inference/v1/generate")
    (('3f', 'v1/models'), ('', 'v1/models'), ('', 'inference/v1/generate'))
    """
    first, _, rest = path[1:].partition("/")
    return ("", path[1:]) if first in ("v1", "inference") else (first, rest)


class ModelList:
    """The answer of ``/v1/models``, for clients of OpenAI, of Anthropic and of vLLM.

    Args:
        room: largest number of tokens of a request.
    """

    def __init__(self, name: str, room: int) -> None:
        self._card = {
            "id": name,
            "object": "model",
            "type": "model",
            "created": int(time.time()),
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "display_name": name,
            "owned_by": "corerl",
            "max_model_len": room,
        }

    def find(self, path: str) -> Mapping[str, Any] | None:
        """The answer to GET; None if the path is another one."""
        if path == MODELS:
            ends = {"first_id": self._card["id"], "last_id": self._card["id"], "has_more": False}
            return {"object": "list", "data": [self._card], **ends}
        return self._card if path == f"{MODELS}/{self._card['id']}" else None
