"""Environment ``grid_walk``: a walk on a grid to a goal, with a reward for each move."""

import random
import re
from dataclasses import dataclass

from corerl_envs import Start, Task, Turn
from corerl_envs.options import GridWalkOptions

MOVES = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}

_MOVE = re.compile("|".join(MOVES))


@dataclass
class Walk:
    """Position and goal: columns from the left, rows from the top."""

    column: int
    row: int
    goal_column: int
    goal_row: int

    @property
    def distance(self) -> int:
        """Moves from the position to the goal."""
        return abs(self.goal_column - self.column) + abs(self.goal_row - self.row)

    def observation(self) -> str:
        """The goal relative to the position: ``goal: 2 left, 1 up``."""
        across, down = self.goal_column - self.column, self.goal_row - self.row
        parts = [f"{abs(across)} {'right' if across > 0 else 'left'}"] if across else []
        parts += [f"{abs(down)} {'down' if down > 0 else 'up'}"] if down else []
        return f"goal: {', '.join(parts)}"

    def good_moves(self) -> list[str]:
        """The moves that reduce the distance."""
        across, down = self.goal_column - self.column, self.goal_row - self.row
        return [name for name, (right, below) in MOVES.items() if right * across > 0 or below * down > 0]

    def move(self, name: str, size: int) -> None:
        """Make one move; the edge of the grid is a wall."""
        across, down = MOVES[name]
        self.column = min(max(self.column + across, 0), size - 1)
        self.row = min(max(self.row + down, 0), size - 1)


def new_walk(seed: int, size: int) -> Walk:
    """A start and a goal on different fields."""
    start, goal = random.Random(seed).sample(range(size * size), 2)
    return Walk(start % size, start // size, goal % size, goal // size)


class GridWalk:
    """Each move is rewarded by the distance that it gains, the last move also for the goal.

    See :class:`corerl_envs.Environment`.
    """

    def __init__(self, *, options: GridWalkOptions) -> None:
        self._options = options

    def reset(self, task: Task, seed: int) -> Start:
        """The row's ``extra_info.seed`` selects the walk; without it, ``seed`` does."""
        walk = new_walk(int(task.extra_info.get("seed", seed)), self._options.size)
        return Start(walk, [{"role": "user", "content": walk.observation()}])

    def step(self, state: Walk, response: str) -> Turn:
        """Make the first move that the response names."""
        named = _MOVE.search(response)
        before, options = state.distance, self._options
        reward = -options.invalid_penalty
        if named is not None:
            state.move(named[0], options.size)
            reward = options.step_reward * (before - state.distance)
        if state.distance == 0:
            reward += options.goal_reward
        return Turn(
            [{"role": "user", "content": state.observation()}],
            reward=reward,
            done=state.distance == 0,
            tool_calls=1,
            tool_errors=int(named is None),
        )

    def close(self) -> None:
        """Does nothing; the environment holds no resources."""
