r"""The answer part of a response: the text outside ``<think>…</think>``.

A response whose prompt ends in ``<think>`` begins with this tag in a run, and in files of responses that CoreRL writes.
The answer follows the last ``</think>`` and ends before a later ``<think>``. A response whose reasoning never ends
therefore has no answer.

=======================================  ==========================================
response                                 answer part
=======================================  ==========================================
``<think>7?</think> Paris``              ``Paris``
``7?</think> Paris``                     ``Paris``
``<think>7?``                            none
``7?``                                   ``7?``; with ``reasoning: opened`` none
=======================================  ==========================================

Other tags (``<reasoning>``, ``[THINK]``) are text.
"""

from dataclasses import dataclass
from typing import Literal

from corerl import option


@dataclass(kw_only=True)
class ReasoningOptions:
    """Options of every scorer of an answer."""

    reasoning: Literal["tagged", "opened", "kept"] = option(
        "tagged",
        "tagged: text in <think>…</think> is no answer; opened: the prompt ends in <think>, so a response without "
        "</think> has no answer; kept: tags are text",
    )


def answer_part(response: str, options: ReasoningOptions) -> str:
    """The response without its reasoning, by ``options.reasoning``; '' if the reasoning never ends."""
    if options.reasoning == "kept":
        return response
    if "think>" not in response:
        return "" if options.reasoning == "opened" else response
    _, end, answer = response.rpartition("</think>")
    return answer.partition("<think>")[0] if end or options.reasoning == "tagged" else ""


def opened(response: str) -> str:
    """The response with the tag ``<think>`` at its beginning."""
    return response if response.lstrip().startswith("<think>") else f"<think>{response}"
