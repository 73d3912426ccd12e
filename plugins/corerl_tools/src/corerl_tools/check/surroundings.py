"""Findings about the environment variables around a run."""

import importlib.util
import os
from collections.abc import Iterator

from corerl.contracts.config import TrainConfig
from corerl_check import Finding, finding


def look(config: TrainConfig) -> Iterator[Finding]:
    """A finding for proxies with which an agent's clients cannot be made, without their values, which may hold keys."""
    named = [name for name, value in os.environ.items() if name.lower().endswith("_proxy") and "socks" in value[:6]]
    if named and config.rollout.agent is not None and importlib.util.find_spec("socksio") is None:
        sentence = (
            f"{' and '.join(named)}: httpx, in OpenAI's and Anthropic's clients, makes no client with a SOCKS proxy"
        )
        yield finding("warning", "rollout.agent", sentence, "pip install socksio, or unset the variables.")
