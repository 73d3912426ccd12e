"""Options of the parts of corerl-verl; they are checked without importing the user's code."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from corerl import option
from corerl.errors import ConfigError
from corerl.registry.modules import is_missing_file


@dataclass
class VerlFunctionOptions:
    """Options of the scorer ``verl``."""

    path: str = option(help="Python file or module of verl's reward function")
    function: str = option("compute_score", "its name")
    kwargs: dict[str, Any] = option(help="further arguments of each call (verl's reward_kwargs)", factory=dict)
    router: str | None = option(
        None, "HOST:PORT of a server of a reward model, for functions with the argument reward_router_address"
    )
    reward_model: str | None = option(
        None, "with router: folder or hub name, whose tokenizer functions get as reward_model_tokenizer"
    )

    def within(self, timeout: float) -> "VerlFunctionOptions":
        """The options themselves, if the file exists; the file is not imported.

        Raises:
            ConfigError: there is no such file.
        """
        if is_missing_file(f"{self.path}:{self.function}"):
            raise ConfigError("reward.scorer.path", f"no file {self.path}")
        return self


@dataclass
class VerlBatchOptions(VerlFunctionOptions):
    """Options of the reward manager ``verl_batch``."""

    batch_size: int | None = option(None, "responses in one call; null: all of a request", ge=1)
    batch_timeout: float = option(600.0, "deadline of one call, in seconds", gt=0)


@dataclass(frozen=True)
class VerlToolsOptions:
    """Options of the agent ``verl_tools``."""

    tools: str | None = option(None, "YAML file of verl's tools (verl's tool_config_path)")
    functions: str | None = option(None, "Python file with @function_tool (verl's function_tool_path)")
    interactions: str | None = option(None, "YAML file of verl's interactions (verl's interaction_config_path)")
    max_calls: int = option(1, "calls of a turn that are answered (verl's max_parallel_calls)", ge=1)
    truncate_side: Literal["left", "middle", "right"] = option(
        "middle", "side of an answer that is left out beyond rollout.multi_turn.max_tool_response_length"
    )

    def examine(self, key: str, config: Any, machine: Any) -> Iterator[ConfigError]:
        """Of :class:`corerl_check.Examined`: a missing file is an error before the run."""
        files = {"tools": self.tools, "functions": self.functions, "interactions": self.interactions}
        yield from _missing(key, files)


@dataclass(frozen=True)
class VerlAgentLoopOptions:
    """Options of the agent ``verl_agent_loop``."""

    config: str = option(help="YAML file of loops, each with name and _target_ (verl's agent_loop_config_path)")
    loop: str | None = option(None, "name of the loop in the file (verl's default_agent_loop); null: its only one")
    tools: str | None = option(None, "YAML file of verl's tools (verl's tool_config_path)")
    functions: str | None = option(None, "Python file with @function_tool (verl's function_tool_path)")
    max_calls: int = option(1, "verl's max_parallel_calls, for loops that read it", ge=1)
    format: str = option("hermes", "verl's multi_turn.format, for loops that read it")
    settings: dict[str, Any] = option(
        help="further keys below verl's actor_rollout_ref.rollout, for loops that read them", factory=dict
    )

    def examine(self, key: str, config: Any, machine: Any) -> Iterator[ConfigError]:
        """See :meth:`VerlToolsOptions.examine`."""
        yield from _missing(key, {"config": self.config, "tools": self.tools, "functions": self.functions})


def _missing(key: str, files: Mapping[str, str | None]) -> Iterator[ConfigError]:
    for name, path in files.items():
        if path is not None and not Path(path).expanduser().is_file():
            yield ConfigError(f"{key}.{name}", f"no file {path}")
