"""The environment of a command: nothing of the run's own."""

from collections.abc import Mapping

from corerl.contracts.agents import Model
from corerl.secrets import reveal

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARK = "CORERL_EPISODE"
"""names the episode in each of its processes"""


def base_variables(home: str, temporary: str, path: str, mark: str) -> dict[str, str]:
    """Of every command of an episode."""
    return {"PATH": path, "HOME": home, "TMPDIR": temporary, "LANG": "C.UTF-8", MARK: mark}


def addresses(model: Model) -> dict[str, str]:
    """The endpoint of the policy, for clients of OpenAI, of Anthropic and of tokens.

    Raises:
        RunError: no plugin serves an endpoint.
    """
    url, key = model.base_url, model.api_key
    root = url.removesuffix("/v1")
    return {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": root,
        "ANTHROPIC_API_KEY": key,
        "CORERL_BASE_URL": root,
        "CORERL_API_KEY": key,
    }


def given_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of the option, with ``${env:NAME}`` replaced.

    Raises:
        ConfigError: a variable of the run is not set.
    """
    return {name: reveal(value) for name, value in environment.items()}
