"""megatron-core's text of a pipeline's layout."""

import re
from typing import Any

_GROUP = re.compile(r"\(([^()]*)\)\*(\d+)|([A-Za-z|])\*(\d+)")
_MOST = 10_000
"""characters of an expanded layout"""


def layers_of(layout: Any) -> list[int]:
    """The number of decoder layers of each stage; [] for another form, or with layers for multi-token prediction.

    >>> layers_of("Et*3|(tt|)*2,t*4L"), layers_of([["embedding", "decoder"], ["decoder", "decoder", "loss"]])
    ([3, 2, 2, 4], [1, 2])
    """
    if isinstance(layout, list):
        rows = [[str(each).lower() for each in row] for row in layout if isinstance(row, list)]
        plain = len(rows) == len(layout) and not any("mtp" in row for row in rows)
        return [row.count("decoder") for row in rows] if plain else []
    text = re.sub(r"[\s,]", "", str(layout))
    while (match := _GROUP.search(text)) is not None:
        text = text[: match.start()] + (match[1] or match[3] or "") * int(match[2] or match[4]) + text[match.end() :]
        if len(text) > _MOST:
            return []
    return [stage.count("t") for stage in text.split("|")] if re.fullmatch(r"[EtL|]+", text) else []
