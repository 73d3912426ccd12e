"""Options of the parts of corerl-verl; they are checked without importing the user's code."""

from dataclasses import dataclass
from typing import Any

from corerl import option
from corerl.errors import ConfigError
from corerl.registry.modules import is_missing_file


@dataclass
class VerlFunctionOptions:
    """Options of the scorer ``verl``."""

    path: str = option(help="Python file or module of verl's reward function")
    function: str = option("compute_score", "its name")
    kwargs: dict[str, Any] = option(help="further arguments of each call (verl's reward_kwargs)", factory=dict)

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
