"""The column ``kept_tokens`` of a batch, and its check of training strategies."""

import numpy as np

from corerl.contracts.experience import Experience
from corerl.contracts.token_columns import TokenColumn, TokenValues


def kept_tokens(experience: Experience, vocabulary: int) -> TokenColumn:
    """Random kept sets: of every fourth response token the whole vocabulary, of others 1 to 12 tokens with its own."""
    draw = np.random.default_rng(0)
    rows = []
    for ids, prompt, length in zip(
        experience.input_ids.tolist(), experience.prompt_lengths.tolist(), experience.lengths.tolist(), strict=True
    ):
        sets: list[list[int]] = []
        for number, token in enumerate(ids[prompt:length]):
            others = draw.choice(vocabulary, int(draw.integers(0, 12)), replace=False).tolist()
            sets.append([] if number % 4 == 3 else [token, *(other for other in others if other != token)])
        values = np.array([token for own in sets for token in own], np.int32)
        rows.append(TokenValues(values, np.array([len(own) for own in sets], np.int32)))
    return TokenColumn.collate(rows, experience.lengths.tolist())
