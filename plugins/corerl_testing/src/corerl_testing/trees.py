"""Batches whose rows form trees: common prompts, and common beginnings of responses."""

import random

from corerl.contracts.experience import Experience, collate
from corerl.objective import loss_weights
from corerl_testing.tiny_model import VOCABULARY


def tree_batch(seed: int = 0, rows: int = 12, *, vocabulary: int = VOCABULARY) -> Experience:
    """Rows that each continue some tokens of an earlier row, in random order, with the loss weights of token-mean.

    Among them are two equal rows, a row that is the beginning of another, a row that has no token in common with the
    others at its start, equal prompts of different groups, and a row without a trained token.

    Args:
        rows: at least 6.
        vocabulary: of the random tokens.
    """
    generator = random.Random(seed)

    def tokens(least: int, most: int) -> list[int]:
        return [generator.randrange(1, vocabulary) for _ in range(generator.randint(least, most))]

    first = tokens(6, 12)
    found = [first, first[:4], [*first[:3], *tokens(2, 4)], [0, *tokens(3, 6)]]
    while len(found) < rows - 1:
        base = generator.choice(found)
        found.append(base[: generator.randint(2, len(base))] + tokens(1, 9))
    found.append(list(generator.choice(found)))
    pairs = [(row[:prompt], row[prompt:]) for row in found for prompt in [generator.randint(1, len(row) - 1)]]
    pairs[:3] = [(row[:2], row[2:]) for row in found[:3]]
    generator.shuffle(pairs)
    prompts, responses = [prompt for prompt, _ in pairs], [response for _, response in pairs]
    masks = [[number != 1] * len(response) for number, response in enumerate(responses)]
    batch = collate(prompts, responses, [number // 3 for number in range(rows)], masks=masks)
    batch.loss_weights = loss_weights(batch.response_mask, "token-mean")
    return batch
