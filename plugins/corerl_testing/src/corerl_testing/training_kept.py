"""The column ``kept_tokens`` of a batch."""

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


def kept_sets(experience: Experience) -> list[list[list[int]]]:
    """The kept tokens of each response token, row by row; none of all without the column."""
    column = experience.columns.get("kept_tokens")
    lengths = experience.response_lengths.tolist()
    if column is None:
        return [[[] for _ in range(length)] for length in lengths]
    rows, values = [], iter(column.values.tolist())
    for counts, prompt, length in zip(column.counts.tolist(), experience.prompt_lengths.tolist(), lengths, strict=True):
        sets = [[next(values) for _ in range(count)] for count in counts]
        rows.append((sets + [[] for _ in range(length)])[prompt : prompt + length])
    return rows
