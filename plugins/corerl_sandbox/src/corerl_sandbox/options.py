"""Options of the scorer ``code``; they are checked before anything else is imported."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from corerl import option
from corerl.errors import ConfigError
from corerl_rewards.answers import ReasoningOptions

DEFAULT_REWARD_TIMEOUT = 30.0
"""seconds for a scorer outside a reward manager"""
WALL_SHARE, PROGRAM_SHARE = 0.9, 0.6
"""shares of reward.timeout: wall-clock time until the machine counts as too busy, and time of a program until it scores
0
"""


@dataclass
class CodeOptions(ReasoningOptions):
    """Options of the scorer ``code``."""

    timeout: float = option(5.0, "seconds that one run of the program may use", gt=0)
    program_timeout: float | None = option(
        None,
        "seconds that all runs of a program may use together; null: 60% of reward.timeout",
        gt=0,
    )
    memory_limit_gb: float = option(1.0, "GiB of address space of the program", gt=0)
    output_limit_kb: int = option(1024, "KiB that the program may print", ge=1)
    continuous: bool = option(False, "true: score is the share of passed tests; false: 1 if all pass, else 0")
    max_tests: int | None = option(None, "only the first so many tests; null: all", ge=1)
    isolation: Literal["strict", "landlock", "best_effort"] = option(
        "strict", "required isolation, else an error before the run (docs/rewards-isolation.md)"
    )

    def __post_init__(self) -> None:
        self.wall = WALL_SHARE * DEFAULT_REWARD_TIMEOUT

    @property
    def program_seconds(self) -> float:
        """``program_timeout``, or its derived value."""
        derived = self.wall / WALL_SHARE * PROGRAM_SHARE
        return derived if self.program_timeout is None else self.program_timeout

    def within(self, timeout: float) -> "CodeOptions":
        """These options below ``reward.timeout``; tests whether the machine allows the isolation.

        Raises:
            ConfigError: ``program_timeout`` is too long, or this machine does not allow the isolation.
        """
        from corerl_sandbox.run import SandboxError, require

        bound = dataclasses.replace(self)
        bound.wall = WALL_SHARE * timeout
        if bound.program_seconds > bound.wall:
            raise ConfigError(
                "reward.timeout",
                f"is {timeout:g} s, too few for scorer 'code' with program_timeout={bound.program_seconds:g} s: "
                f"at least {bound.program_seconds / WALL_SHARE:.3g}",
            )
        try:
            require(self.isolation)
        except SandboxError as error:
            raise ConfigError(
                "reward.scorers",
                f"scorer 'code' cannot provide isolation={self.isolation} on this machine ({error}): allow the "
                "missing part, or choose a weaker level (docs/rewards-isolation.md)",
            ) from error
        return bound
