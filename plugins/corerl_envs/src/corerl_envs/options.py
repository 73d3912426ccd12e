"""The options of this distribution's parts."""

from dataclasses import dataclass
from typing import Literal

from corerl import option

INSTRUCTION = (
    "\n\nYou may use a calculator: write <calc>expression</calc>, such as <calc>12 * (3 + 4)</calc>, and end your "
    "turn. The result comes with the next message."
)


@dataclass(frozen=True)
class CalculatorOptions:
    instruction: str = option(INSTRUCTION, "put behind the last user message of the prompt; empty: nothing is")
    role: Literal["tool", "user"] = option("tool", "of the messages with results; user: for templates without tools")
    max_calls: int = option(8, "calls worked out in one turn", ge=1)


@dataclass(frozen=True)
class GridWalkOptions:
    size: int = option(4, "rows and columns of the grid", ge=2)
    goal_reward: float = option(1.0, "for the move that arrives")
    step_reward: float = option(0.1, "for each field that a move comes nearer; taken away for one farther", ge=0)
    invalid_penalty: float = option(0.1, "taken from the reward of a turn that names no move", ge=0)


@dataclass(frozen=True)
class GridWalkDataOptions:
    train_size: int = option(512, "rows of train", ge=0)
    test_size: int = option(64, "rows of test", ge=0)
    sft_size: int = option(2048, "walks for a cold start", ge=0)
    moves: int = option(4, "moves of each of those walks, fewer where it arrives", ge=1)
    good: float = option(0.5, "share of those moves that go towards the goal; the others are random", ge=0, le=1)
    size: int = option(4, "rows and columns of the grid", ge=2)
    seed: int = option(0, "of everything random", ge=0)
