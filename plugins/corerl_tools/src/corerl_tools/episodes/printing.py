"""A response as a conversation on a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from corerl.batch.times import KINDS
from corerl.terminal.output import printable
from corerl_tools.episodes.columns import shortened
from corerl_tools.episodes.conversation import Asked, Conversation, Item, Side, conversation
from corerl_tools.episodes.messages import as_text

STYLES = dict(zip(KINDS, ("bright_black", "blue", "yellow", "green"), strict=True))
BAR = 40
"""characters of the bar of times"""


class ConversationPrinter:
    """Renders responses; a text of more than ``characters`` lacks its middle."""

    def __init__(self, characters: int) -> None:
        self.characters = characters

    def response(self, title: str, row: Mapping[str, Any]) -> RenderableType:
        """A row of sample rollouts, or of ``corerl generate``.

        Raises:
            TypeError, ValueError, KeyError: the row is not of CoreRL.
        """
        talk = conversation(row)
        return Group(Rule(Text(printable(title), style="bold"), align="left"), *self._parts(talk, row))

    def _parts(self, talk: Conversation, row: Mapping[str, Any]) -> Iterator[RenderableType]:
        yield Text(_facts(talk, row), style="bright_black")
        for error in dict.fromkeys((row.get("error"), row.get("environment_error"))):
            if error:
                yield self._text(str(error), "red")
        if any(talk.seconds.values()):
            yield times(talk.seconds)
        for message in talk.prompt:
            yield from self._item(Item(message), row)
        for item in talk.items:
            yield from self._item(item, row)
        for branch in talk.branches:
            yield from self._branch(branch)
        for name, text in talk.artifacts.items():
            yield self._text(f"artifact {name}", "bold magenta")
            yield _inside(self._text(text))
        if talk.left_out:
            yield self._text(f"left out of the file: {talk.left_out}", "bright_black")

    def _branch(self, branch: Side) -> Iterator[RenderableType]:
        begin = "begins anew" if branch.after is None else f"continues turn {branch.after + 1}"
        tokens = f"tokens: {branch.shared} shared, {branch.row['response_length']} further"
        yield Text.assemble((f"branch {branch.number}", "bold magenta"), (f"  {begin} · {tokens}", "bright_black"))
        for item in branch.items:
            for part in self._item(item, branch.row):
                yield _inside(part)

    def _item(self, item: Item, row: Mapping[str, Any]) -> Iterator[RenderableType]:
        said = item.said
        own = said.role in ("assistant", "response")
        heading = Text(printable(f"{said.role} · {said.name}" if said.name else said.role))
        heading.stylize("bold cyan" if own else "bold")
        yield heading if item.asked is None else heading + Text(f"  {turn_facts(item.asked)}", style="bright_black")
        if said.reasoning:
            yield _inside(self._text(said.reasoning, "italic bright_black"))
        text = said.text or ("" if said.calls else _text_of_tokens(item, row))
        if text:
            yield _inside(self._text(text))
        for name, arguments in said.calls:
            yield _inside(Text.assemble(("→ ", "yellow"), (printable(name), "bold yellow"), " ", self._text(arguments)))

    def _text(self, text: str, style: str = "") -> Text:
        return Text(printable(shortened(text, self.characters)), style=style)


def times(seconds: Mapping[str, float]) -> Text:
    """A bar of the seconds of each kind, and their numbers."""
    total = sum(seconds.values())
    line = Text()
    for kind, value in seconds.items():
        line.append("━" * round(BAR * value / total), STYLES[kind])
    for kind, value in seconds.items():
        if value >= 0.0005:
            line.append(f"  {kind} ", STYLES[kind])
            line.append(brief(value))
    return line


def turn_facts(asked: Asked) -> str:
    """The number, times, tokens and reward of a request, in a line."""
    facts = [f"turn {asked.number + 1}"]
    if asked.times is not None:
        named = (
            ("after tool", asked.times.tool),
            ("waited", asked.times.waiting),
            ("generated", asked.times.generating),
        )
        facts += [f"{name} {brief(value)}" for name, value in named if value >= 0.0005]
    facts.append(f"{asked.sampled} tokens")
    if asked.request is not None and asked.request.finish_reason != "stop":
        facts.append(f"ended by {printable(asked.request.finish_reason)}")
    if asked.reward is not None:
        facts.append(f"reward {asked.reward:g}")
    return " · ".join(facts)


def brief(seconds: float) -> str:
    """A duration with two or three digits.

    >>> [brief(each) for each in (0.0123, 1.25, 75.4)]
    ['12 ms', '1.25 s', '75.4 s']
    """
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"


def _facts(talk: Conversation, row: Mapping[str, Any]) -> str:
    components = {str(name): value for name, value in (row.get("components") or {}).items()}
    named = [
        *components.items(),
        ("expected", as_text(row.get("ground_truth"))),
        ("extracted", row.get("extracted")),
        ("turns", len(talk.requests) or None),
        ("tokens", f"{row.get('prompt_length', '?')} + {row.get('response_length', '?')}"),
        ("ended by", row.get("finish_reason")),
        ("weights", row.get("weight_version")),
    ]
    known = [
        (name, f"{value:g}" if isinstance(value, float) else str(value)) for name, value in named if value is not None
    ]
    return printable(" · ".join(f"{name} {shortened(text, 200)}" for name, text in known if text))


def _text_of_tokens(item: Item, row: Mapping[str, Any]) -> str:
    if item.tokens is None:
        return ""
    start, end = item.tokens
    texts: Sequence[str] = row.get("token_texts") or ()
    held = "".join(texts[start:end])
    left = end - max(start, len(texts))
    return held if left <= 0 else f"{held} … {left} tokens that the file does not hold"


def _inside(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2), expand=False)
