"""From sampled text to an assistant's message: content, reasoning and tool calls, by family of models."""

from corerl_agents.parsing.contract import Call, Format, Parsed
from corerl_agents.parsing.parser import FORMATS, Parser, format_of

__all__ = ["FORMATS", "Call", "Format", "Parsed", "Parser", "format_of"]
