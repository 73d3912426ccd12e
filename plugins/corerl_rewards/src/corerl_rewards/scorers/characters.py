r"""One spelling of characters for all graders of answers: signs, digits and spaces of any script in ASCII.

=============================================  =============================
written                                        read as
=============================================  =============================
``３４``, ``۳۴``, ``𝟑𝟒``                         ``34``
``１２．５％``, ``١٢٫٥``                          ``12.5%``, ``12.5``
``Answer：Ｂ``                                  ``Answer:B``
``−5``, ``–5``, ``‑5``                         ``-5``
``3`` zero-width space ``4``                   ``34``
``e`` with a combining accent                  ``é``
``34。``                                       ``34.``
=============================================  =============================

The characters are those of NFKC (Unicode Standard Annex 15). Superscripts, subscripts, fractions such as ½ and the
double-struck ℝ stay: NFKC would turn ``x²`` into ``x2``.
"""

import unicodedata

from corerl_rewards.answers import ReasoningOptions, answer_part

LONGEST_RUN = 30
"""combining characters in a row, as in the Stream-Safe Text Format; NFC takes quadratic time for longer runs"""

_KEPT_FORMS = ("<super>", "<sub>", "<fraction>")
_DOUBLE_STRUCK = "ℂℕℙℚℝℤ"
_SPELLINGS = {
    "-": "‐‑‒–−➖˗",
    '"': "“”„‟«»「」『』《》〈〉",
    "'": "‘’‚‛",
    "[": "【〖〔",
    "]": "】〗〕",
    ",": "،٬\u2063",
    ", ": "、",
    ".": "٫۔",
    ". ": "。｡",
    ";": "؛",
    "?": "؟",
    "%": "٪",
    "/": "⁄∕",
    ":": "∶",
    "*": "∗",
    "·": "⋅∙",
    "×": "✕✖⨯",
    "+": "➕",
    "°": "º˚",
    "\n": "\u2028\u2029\x85",
    " ": "\u2062",
    "": "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0",
}
_WRITTEN = {ord(one): spelling for spelling, written in _SPELLINGS.items() for one in written}
_IGNORED = (range(0xFE00, 0xFE10), range(0x180B, 0x1810), range(0xE0100, 0xE01F0))
"""selectors of variants"""


def answer_text(response: str, options: ReasoningOptions) -> str:
    """The response without its reasoning, in one spelling."""
    return readable(answer_part(response, options))


def readable(text: str) -> str:
    """The text in one spelling.

    >>> readable("１２．５％"), readable("−۳۴"), readable("x² ½")
    ('12.5%', '-34', 'x² ½')
    """
    if text.isascii():
        return text
    return composed(text.translate(_Table()))


def composed(text: str) -> str:
    """The text in NFC: an accent after its letter becomes part of the letter."""
    return unicodedata.normalize("NFC", _with_short_runs(text)) if any(map(unicodedata.combining, text)) else text


def _with_short_runs(text: str) -> str:
    """The text without the combining characters that would make NFC slow."""
    kept, run = [], 0
    for one in text:
        run = run + 1 if unicodedata.combining(one) else 0
        if run <= LONGEST_RUN:
            kept.append(one)
    return "".join(kept)


class _Table(dict[int, str]):
    """The spelling of each character of one text, found at its first use."""

    def __missing__(self, code: int) -> str:
        self[code] = spelling = _spelling(code)
        return spelling


def _spelling(code: int) -> str:
    one = chr(code)
    if code < 128:
        return one
    if code in _WRITTEN:
        return _WRITTEN[code]
    category = unicodedata.category(one)
    if category == "Cf" or any(code in ignored for ignored in _IGNORED):
        return ""
    if category == "Zs":
        return " "
    if category == "Nd":
        return str(unicodedata.decimal(one))
    form = unicodedata.decomposition(one).partition(" ")[0]
    if form in _KEPT_FORMS or one in _DOUBLE_STRUCK:
        return one
    return unicodedata.normalize("NFKC", one).translate(_WRITTEN)
