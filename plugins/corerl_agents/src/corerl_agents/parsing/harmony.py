"""gpt-oss: messages in channels, ``analysis`` for reasoning, ``commentary`` with a recipient for calls, ``final``."""

import re

from corerl_agents.parsing.contract import Call, MalformedError, Parsed, Schemas, call_of

_MESSAGE = re.compile(
    r"(?P<header>.*?)<\|message\|>(?P<body>.*?)(?P<end><\|end\|>|<\|call\|>|<\|return\|>|\Z)", re.DOTALL
)
_RECIPIENT = re.compile(r"to=(?:functions\.)?(?P<name>[\w.-]+)")


def harmony(text: str, schemas: Schemas) -> Parsed:
    """``<|channel|>commentary to=functions.… <|message|>{…}<|call|>``; a text without channels is content."""
    content, reasoning, calls, malformed = list[str](), list[str](), list[Call](), 0
    end = 0
    for found in _MESSAGE.finditer(text):
        end = found.end()
        header, body = found["header"], found["body"]
        recipient = _RECIPIENT.search(header)
        if recipient is not None and schemas:
            try:
                calls.append(call_of(recipient["name"], body.strip()))
            except MalformedError:
                malformed += 1
                content.append(body)
        elif "analysis" in header:
            reasoning.append(body)
        else:
            content.append(body)
    content.append(text[end:].rpartition("<|channel|>")[0])
    if not end:
        content = [text]
    return Parsed("".join(content), "\n".join(reasoning), tuple(calls), malformed)
