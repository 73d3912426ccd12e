"""Texts of messages stay text: letters that spell a control token, such as ``<|im_end|>``, become no token.

In a rendered chat the template's tokens and those spelled by messages look alike. Messages are therefore marked before
they are rendered: ``MARK`` is put into each control token that they spell, and at their borders if a token could be
completed there. A marked text is encoded in one pass by a copy of the tokenizer. There control tokens are letters, and
each one that the template wrote has a stand-in with the same flags.
"""

import copy
import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "corerl-letters-5b1e7d"
"""ASCII, which templates that escape or quote a text leave as it is"""

_TAG = re.compile(r"</?\w+>")
"""tokens such as <think>, which texts name in instructions; with them no turn begins"""


class ControlTokens:
    """The control tokens of a tokenizer, in texts of messages.

    They are the special tokens, and added tokens of the chat template that are no tags or that stand between turns. In
    results of tools they are all added tokens of the template.

    Args:
        template: source of the chat template.
        turns: a rendered chat with turns of user and assistant.
        allowed: control tokens that texts may write; ``all``: every one.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", template: str, turns: str, allowed: Collection[str]
    ) -> None:
        self._tokenizer = tokenizer
        self._added = {token.content: (token_id, token) for token_id, token in tokenizer.added_tokens_decoder.items()}
        special = {text for text, (_, token) in self._added.items() if token.special}
        written = {text for text in self._added if text in template and not text.isspace()}
        framing = {text for text in self._added if text in turns and "think" not in text and not text.isspace()}
        usual = special | framing | {text for text in written if not _TAG.fullmatch(text)}
        self._known = usual | written
        free = self._known if "all" in allowed else {*allowed}
        self._usual, self._of_role = _Spelling(usual - free), {"tool": _Spelling(self._known - free)}

    def mark_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages with marks in all of their texts."""
        return [self._of_role.get(str(each.get("role")), self._usual).marked(dict(each)) for each in messages]

    def mark(self, value: Any) -> Any:
        """A text, or a tree of mappings and lists, with marks in all of its texts."""
        return self._usual.marked(value)

    def spelled(self, text: str) -> Counter[str]:
        """Control token -> number in the marked parts of a rendered text."""
        if MARK not in text:
            return Counter()
        shown = Counter(self._pattern.findall(text.replace(MARK, "")))
        shown.subtract(self._pattern.findall(text))
        return Counter({token: count for token, count in shown.items() if count > 0 and token in self._known})

    def concerns(self, text: str) -> bool:
        """Whether a rendered text needs :meth:`encode`: it is marked, or normalization may make control tokens."""
        return MARK in text or self._appear_normalized

    def encode(self, text: str) -> list[int] | None:
        """Token ids of a marked text, in one pass; None: there is no copy, or it makes control tokens of letters."""
        if self._copy is None:
            return None
        backend, stand_ins, ids = self._copy
        given = self._pattern.sub(lambda found: stand_ins.get(found[0], found[0]), text).replace(MARK, "")
        found: list[int] = backend.encode(given, add_special_tokens=False).ids
        return [ids.get(each, each) for each in found] if set(found).isdisjoint(ids.values()) else None

    def pieces(self, text: str) -> Iterator[str | int]:
        """A marked text as ids of its control tokens and texts between them, which marks cut."""
        start = 0
        for token in self._pattern.finditer(text):
            if token[0] in self._known:
                yield from filter(None, text[start : token.start()].split(MARK))
                yield self._added[token[0]][0]
                start = token.end()
        yield from filter(None, text[start:].split(MARK))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """All added tokens, as the tokenizer finds them: the longest of the leftmost."""
        return _pattern_of(self._added)

    @cached_property
    def _appear_normalized(self) -> bool:
        """Whether texts are compared with control tokens after their normalization."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        return getattr(backend, "normalizer", None) is not None and any(
            self._added[text][1].normalized for text in self._known
        )

    @cached_property
    def _copy(self) -> "tuple[Any, dict[str, str], dict[int, int]] | None":
        """The tokenizer without control tokens, their stand-ins, and id of a stand-in -> id of the control token."""
        from tokenizers import AddedToken
        from transformers import PreTrainedTokenizerFast

        if getattr(type(self._tokenizer), "_encode_plus", None) is not PreTrainedTokenizerFast._encode_plus:
            return None
        backend = copy.deepcopy(self._tokenizer.backend_tokenizer)
        backend.no_truncation()
        backend.no_padding()
        known = {text: self._added[text] for text in self._known}
        stand_ins = {text: f"<{secrets.token_hex(16)}>" for text in known}
        flags = {
            text: {name: getattr(token, name) for name in ("lstrip", "rstrip", "normalized", "single_word")}
            for text, (_, token) in known.items()
        }
        backend.add_special_tokens([AddedToken(text, special=True, **flags[text]) for text in known])
        backend.add_tokens([AddedToken(stand_ins[text], special=False, **flags[text]) for text in known])
        backend.encode_special_tokens = True
        return (
            backend,
            stand_ins,
            {backend.token_to_id(stand_ins[text]): token_id for text, (token_id, _) in known.items()},
        )


class _Spelling:
    """Finds tokens in texts, and marks them."""

    def __init__(self, tokens: Collection[str]) -> None:
        tokens = [token for token in tokens if len(token) > 1]
        self._pattern = _pattern_of(tokens)
        parts = {(token[:cut], token[cut:]) for token in tokens for cut in range(1, len(token))}
        self._begun = {begun for begun, _ in parts if len(begun) > 1 and not begun.isalnum()}
        self._ends = {end for _, end in parts if not end.isalnum()}
        self._lengths = range(1, max(map(len, tokens), default=1))
        self._joined = "\0".join(tokens)

    def marked(self, value: Any) -> Any:
        """See :meth:`ControlTokens.mark`."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self.marked(key): self.marked(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.marked(each) for each in value]
        return value

    def _text(self, text: str) -> str:
        before = MARK if any(text[:length] in self._ends for length in self._lengths) else ""
        behind = MARK if any(text[-length:] in self._begun for length in self._lengths) else ""
        if 2 < len(text) < len(self._lengths) and not text.isalnum() and text in self._joined:
            before = MARK  # the template may write both ends
        text = text.replace(MARK, MARK[0] + MARK + MARK[1:])
        while self._pattern.search(text):  # again, since tokens may overlap
            text = self._pattern.sub(lambda found: found[0][0] + MARK + found[0][1:], text)
        return before + text + behind


def _pattern_of(tokens: Collection[str]) -> re.Pattern[str]:
    """The longest of the leftmost tokens in a text; grouped by their first characters, as there may be thousands."""
    groups: dict[str, list[str]] = {}
    for token in sorted(tokens, key=len, reverse=True):
        groups.setdefault(token[:2], []).append(re.escape(token[2:]))
    begun = sorted(groups, key=len, reverse=True)
    return re.compile("|".join(f"{re.escape(each)}(?:{'|'.join(groups[each])})" for each in begun) or "(?!)")
