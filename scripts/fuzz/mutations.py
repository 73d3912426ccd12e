"""Changes to a good file: values of a tree, characters of a text, bytes."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

GONE = "<gone>"
"""in place of a value: its key is left out"""

HOSTILE = (
    *("", " ", "~", "..", "../../../escaped", "/etc/passwd", "a" * 5000, "null", "nan", "${", "${oc.env:HOME}", "???"),
    *("\x00", "\x1b]0;owned\x07\x1b[31m", "\u202e", "\ud800", "\r\n", "os:system", "./trap.py:run", "trap.py"),
    *(
        "1e400",
        "-0",
        "٣",
        "𝟙",
        "0x10",
        "1_000",
        "<script>alert(1)</script>",
        "%s%n",
        "{0.__class__}",
        "int8",
        "float32",
    ),
)

scalars = st.one_of(
    st.sampled_from([None, True, False, 0, 1, -1, 2, 2**31, 2**63, 10**400, -(2**70)]),
    st.sampled_from([0.0, -0.0, 0.5, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")]),
    st.sampled_from(HOSTILE),
    st.integers(-5, 5),
    st.text(max_size=12),
)

values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(HOSTILE) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)

Edits = list[tuple[int, Any]]
edits = st.lists(st.tuples(st.integers(0, 2000), st.just(GONE) | values), min_size=1, max_size=3)
"""``(number of the place, what comes there)``, for :func:`changed`"""

Cuts = list[tuple[str, float, bytes]]
cuts = st.lists(
    st.tuples(
        st.sampled_from(("flip", "insert", "cut", "overwrite", "repeat")), st.floats(0, 1), st.binary(max_size=16)
    ),
    min_size=1,
    max_size=4,
)
"""``(what, where as a share of the length, bytes)``, for :func:`damaged`"""

DEEP = {
    "lists without end": "[" * 100_000,
    "objects without end": '{"a":' * 100_000,
    "deep lists": "[" * 5000 + "]" * 5000,
    "deep objects": '{"a":' * 3000 + "1" + "}" * 3000,
    "long number": "9" * 5000,
    "NaN": "NaN",
    "no character": '"\\ud800"',
    "a list": "[1]",
    "null": "null",
    "nothing": "",
}
"""texts of JSON, by name"""


def changed(tree: Any, made: Edits) -> Any:
    """A copy of a tree with other values at some places, which are counted through."""
    tree = copy.deepcopy(tree)
    for number, value in made:
        places = list(_places(tree))
        if not places:
            return value
        owner, key = places[number % len(places)]
        if value == GONE:
            del owner[key]
        else:
            owner[key] = value
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    keys: Sequence[Any] = ()
    if isinstance(tree, dict):
        keys = list(tree)
    elif isinstance(tree, list):
        keys = range(len(tree))
    for key in keys:
        yield tree, key
        yield from _places(tree[key])


def damaged(content: bytes, made: Cuts) -> bytes:
    """A copy with bytes flipped, added, overwritten, repeated or cut off."""
    for what, share, given in made:
        place = int(share * len(content))
        head, tail = content[:place], content[place:]
        if what == "flip" and tail:
            content = head + bytes([tail[0] ^ (given[0] if given else 255)]) + tail[1:]
        elif what == "insert":
            content = head + given + tail
        elif what == "cut":
            content = head
        elif what == "overwrite":
            content = head + given + tail[len(given) :]
        elif what == "repeat":
            content = head + given * 50 + tail
    return content
