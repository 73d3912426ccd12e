"""Scorer of a response's form: ``<think>…</think><answer>…</answer>``, each tag once, each with text inside.

The format reward of DeepSeek-R1 (2025, arXiv 2501.12948, section 2.2.2). It does not judge the answer: use it with a
scorer of correctness, in ``combined``.

=======================================================  =======================
response                                                 score
=======================================================  =======================
``<think>6·7</think> <answer>42</answer>``               1
``<think>6·7</think> 42``                                1 with ``tags: think``
``Well, <think>6·7</think> <answer>42</answer>``         0, text before
``<think>6·7</think> <answer> </answer>``                0, nothing between
``<think>a</think><think>b</think><answer>42</answer>``  0, a tag twice
=======================================================  =======================

open-r1 also requires a line break after each tag; TinyZero and Open-Reasoner-Zero do not.
"""

import re
from collections.abc import Mapping
from typing import Any

from corerl_rewards.answers import opened
from corerl_rewards.options import FormatOptions

_TAG = re.compile(r"</?(?:think|answer)>")
_DEFAULT = FormatOptions()
_WANTED = {
    "think_answer": ["<think>", "</think>", "<answer>", "</answer>"],
    "think": ["<think>", "</think>"],
    "answer": ["<answer>", "</answer>"],
}


def format(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: FormatOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """1.0 if the tags of ``options.tags`` frame the response, else 0.0; ``extracted`` are the found tags."""
    text = opened(response) if options.think_opened else response
    tags = _TAG.findall(text)
    right = tags == _WANTED[options.tags] and _filled([part.strip() for part in _TAG.split(text)], options.tags)
    return {"score": float(right), "extracted": "".join(tags[:8])}


def _filled(parts: list[str], tags: str) -> bool:
    """Whether text is exactly at the required places; ``parts`` are the texts around and between the tags."""
    match tags, parts:
        case "think_answer", [before, thought, between, answer, after]:
            return bool(thought and answer) and not (before or between or after)
        case "think", [before, thought, answer]:
            return bool(thought and answer) and not before
        case _, [*_, answer, after]:
            return bool(answer) and not after
    return False
