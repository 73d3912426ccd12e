"""Texts that end a sample: the tokenizer of the model, in the engine's process."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

FURTHER = 32
"""tokens that are read for a text, beside one for each of its bytes: those of the last report, and of no text"""


class StopTexts:
    """Looks for texts at the end of samples; its tokenizer is loaded for the first request that has some.

    Args:
        source: folder or hub name of the tokenizer; '': no text is found.
    """

    def __init__(self, source: str, *, trust_remote_code: bool) -> None:
        self._source, self._trust = source, trust_remote_code
        self._tokenizer: Any = None
        self._loading = asyncio.Lock()

    async def ready(self) -> bool:
        """Load the tokenizer; False if there is none: samples then go on to their limits, and the client cuts them."""
        async with self._loading:
            if self._tokenizer is None and self._source:
                try:
                    self._tokenizer = await asyncio.to_thread(self._load)
                except (OSError, ValueError, ImportError) as error:
                    print(f"texts end no samples here: {type(error).__name__}: {error}", flush=True)
                    self._source = ""
        return self._tokenizer is not None

    def _load(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._source, trust_remote_code=self._trust)

    def are_in(self, token_ids: Sequence[int], texts: Sequence[str]) -> bool:
        """Whether the last tokens have one of these texts; special tokens may be part of it, or stand within it."""
        last = list(token_ids[-(FURTHER + max(len(text.encode()) for text in texts)) :])
        decode: Callable[..., str] = self._tokenizer.decode
        return any(
            text in decode(last, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            for skip in (True, False)
            for text in texts
        )
