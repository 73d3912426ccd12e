"""The options of the parts of corerl-envs."""

from dataclasses import dataclass
from typing import Literal

from corerl import option

INSTRUCTION = (
    "\n\nYou may use a calculator: write <calc>expression</calc>, such as <calc>12 * (3 + 4)</calc>, and end your "
    "turn. The result comes with the next message."
)


@dataclass(frozen=True)
class CalculatorOptions:
    instruction: str = option(INSTRUCTION, "appended to the last user message of the prompt; empty: nothing")
    role: Literal["tool", "user"] = option("tool", "role of messages with results; user: for templates without tools")
    max_calls: int = option(8, "calls evaluated in one turn", ge=1)


@dataclass(frozen=True)
class GridWalkOptions:
    size: int = option(4, "rows and columns of the grid", ge=2)
    goal_reward: float = option(1.0, "reward of the move that reaches the goal")
    step_reward: float = option(0.1, "reward of a move towards the goal; subtracted for a move away from it", ge=0)
    invalid_penalty: float = option(0.1, "subtracted from the reward of a turn without a move", ge=0)


@dataclass(frozen=True)
class GridWalkDataOptions:
    train_size: int = option(512, "rows of train", ge=0)
    test_size: int = option(64, "rows of test", ge=0)
    sft_size: int = option(2048, "walks for a cold start", ge=0)
    moves: int = option(4, "moves of each of those walks, fewer if it reaches the goal", ge=1)
    good: float = option(0.5, "share of those moves that go towards the goal; the others are random", ge=0, le=1)
    size: int = option(4, "rows and columns of the grid", ge=2)
    seed: int = option(0, "seed of all randomness", ge=0)
