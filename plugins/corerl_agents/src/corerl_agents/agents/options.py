"""The options of the agents."""

from dataclasses import dataclass
from typing import Literal

from corerl import option


@dataclass(frozen=True)
class ChatOptions:
    system: str = option("", "system message before the row's messages; empty: none")


@dataclass(frozen=True)
class ToolsOptions:
    functions: list[str] = option(help="tools: module:function or ./file.py:function", factory=list)
    servers: list[str] = option(
        help="MCP servers whose tools the policy gets: a command line, or an http(s) URL", factory=list
    )
    sessions: Literal["episode", "run"] = option(
        "episode", "sessions with the servers: one for each episode, or one for the run, whose episodes share its state"
    )
    start_timeout: float = option(30.0, "deadline of the start of a server's session, in seconds", gt=0)
    max_calls: int = option(8, "calls of one turn; further calls are answered with an error", ge=1)
    system: str = option("", "system message before the row's messages; empty: none")
