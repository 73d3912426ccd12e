"""The environment ``grid_walk``, seen as a picture in every turn: the walker is blue, the goal red."""

import io
from typing import Any

from PIL import Image

from corerl_envs import Start, Task, Turn
from corerl_envs.grid_walk import GridWalk, Walk
from corerl_envs.options import GridWalkOptions

CELL = 16
"""pixels of a cell's side: a token of the model of run.sh"""


class PicturedWalk(GridWalk):
    """See :class:`corerl_envs.Environment`."""

    def __init__(self) -> None:
        self._size = 3
        super().__init__(options=GridWalkOptions(size=self._size))

    def reset(self, task: Task, seed: int) -> Start:
        start = super().reset(task, seed)
        return Start(start.state, self._observation(start.state))

    def step(self, state: Walk, response: str) -> Turn:
        turn = super().step(state, response)
        return Turn(self._observation(state), turn.reward, turn.done, turn.tool_calls, turn.tool_errors)

    def _observation(self, walk: Walk) -> list[dict[str, Any]]:
        picture = Image.new("RGB", (CELL * self._size, CELL * self._size), "white")
        for column, row, colour in ((walk.goal_column, walk.goal_row, "red"), (walk.column, walk.row, "blue")):
            picture.paste(colour, (CELL * column, CELL * row, CELL * (column + 1), CELL * (row + 1)))
        file = io.BytesIO()
        picture.save(file, "PNG")
        return [{"role": "user", "content": [{"type": "image", "image": file.getvalue()}]}]
