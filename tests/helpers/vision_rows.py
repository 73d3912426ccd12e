"""A mini-batch of rows with images and of text, and its update by ``fsdp`` on several ranks."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl_torch.media_store import COLUMN
from corerl_torch.supervised import SupervisedObjective
from pictures import picture, tokenizer_of


def batch(folder: Path) -> Experience:
    """Two rows with an image, and one of text."""
    tokenizer, prompts, columns = tokenizer_of(folder), [], []
    for images in ([picture(1)], [picture(2, 40, 70)], []):
        content, given = ("<image>red?", {COLUMN: images}) if images else ("red?", {})
        messages, media = tokenizer.place_media([{"role": "user", "content": content}], given, "")
        ids, own = tokenizer.encode_media(tokenizer.render(messages, "", add_generation_prompt=True), media, "")
        prompts.append(ids)
        columns.append(own[COLUMN].widened(2) if own else None)
    experience = collate(prompts, [[5, 6]] * 3, [0, 1, 2])
    experience.columns[COLUMN] = TokenColumn.collate(columns, experience.lengths.tolist())
    experience.loss_weights = torch.ones(3, 2, dtype=torch.float64) / 6
    return experience


def spec(folder: Path, eps: float = 1e-8) -> StrategySpec:
    optim = OptimConfig(lr=1e-2, eps=eps)
    return StrategySpec(
        ModelConfig(path=str(folder)), "cpu", MicroBatching(max_sequences=1), optim=optim, grad_clip=1e9
    )


EPS = 1e-3
"""for comparisons of weights after a step, which is the gradient over itself and EPS: rounding errors stay small"""


def updated(strategy: Any, rows: Experience) -> dict[str, torch.Tensor]:
    """The weights after an update."""
    strategy.update(rows, SupervisedObjective())
    return {name: each.clone() for name, each in strategy.weights()}


def main(folder: Path, out: Path) -> None:
    """One rank: rank 0 has the rows with images, the other one the row of text."""
    from corerl_fsdp.fsdp import FsdpStrategy

    rows = torch.tensor([0, 1] if os.environ["RANK"] == "0" else [2])
    weights = updated(FsdpStrategy(spec(folder, EPS)), batch(folder).select(rows))
    if os.environ["RANK"] == "0":
        save_file({name: each.contiguous() for name, each in weights.items()}, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
