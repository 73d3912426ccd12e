"""Data for ``grid_walk``: starts and goals as seeds, and partly random walks for a cold start."""

import random
from collections.abc import Iterable

from corerl_envs.grid_walk import MOVES, new_walk
from corerl_envs.options import GridWalkDataOptions
from corerl_tools.prepare.contract import ChatRow, PromptRow


class GridWalkData:
    """train and test with different seeds, and sft: walks with good and random moves."""

    def __init__(self, options: GridWalkDataOptions) -> None:
        self._options = options

    def generate(self) -> dict[str, Iterable[PromptRow | ChatRow]]:
        """The splits; sft is omitted if it has no rows."""
        options = self._options
        seeds = iter(range(options.seed * 1_000_000, (options.seed + 1) * 1_000_000))
        splits: dict[str, Iterable[PromptRow | ChatRow]] = {
            "train": [self._prompt_row(next(seeds)) for _ in range(options.train_size)],
            "test": [self._prompt_row(next(seeds)) for _ in range(options.test_size)],
        }
        walks = [self._chat_row(next(seeds)) for _ in range(options.sft_size)]
        return splits | {"sft": walks} if walks else splits

    def _prompt_row(self, seed: int) -> PromptRow:
        """A row; the environment replaces its prompt by the first observation."""
        walk = new_walk(seed, self._options.size)
        return PromptRow(
            data_source="corerl/grid_walk",
            prompt=[{"role": "user", "content": f"grid walk {seed}"}],
            ability="game",
            ground_truth=walk.distance,
            extra_info={"seed": seed},
        )

    def _chat_row(self, seed: int) -> ChatRow:
        rng, walk = random.Random(seed), new_walk(seed, self._options.size)
        messages = [{"role": "user", "content": walk.observation()}]
        for _ in range(self._options.moves):
            towards = rng.random() < self._options.good
            name = rng.choice(walk.good_moves() if towards else list(MOVES))
            walk.move(name, self._options.size)
            messages.append({"role": "assistant", "content": name})
            if walk.distance == 0:
                break
            messages.append({"role": "user", "content": walk.observation()})
        return ChatRow(messages)
