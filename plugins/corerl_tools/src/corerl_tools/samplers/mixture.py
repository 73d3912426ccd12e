"""``mixture``: data sources in given shares, evenly through the epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from corerl import option
from corerl.data.prompts import Prompt
from corerl.errors import ConfigError

KEY = "data.sampler.weights"


@dataclass(frozen=True)
class MixtureOptions:
    """Options of ``mixture``."""

    weights: dict[str, float] = option(help="data source, or pattern such as 'aime*' -> weight", factory=dict)


def mixture(prompts: Sequence[Prompt], epoch: int, seed: int, *, options: MixtureOptions) -> list[int]:
    """The share of a pattern in each batch is its weight over the sum of the weights, up to one prompt or so.

    Each pattern walks through its own prompts, shuffled anew in each walk, from epoch to epoch: two of its prompts
    differ by at most one in the number of times that they came.
    """
    rows = _rows(prompts, options.weights)
    counts = _counts([options.weights[name] for name in rows], len(prompts))
    places: list[tuple[float, int]] = []
    for number, (own, count) in enumerate(zip(rows.values(), counts, strict=True)):
        offset = np.random.default_rng([seed, number, epoch]).random()
        taken = _walk(own, epoch * count, count, [seed, number])
        places += [((at + offset) / count, index) for at, index in enumerate(taken)]
    return [index for _, index in sorted(places)]


def _rows(prompts: Sequence[Prompt], weights: Mapping[str, float]) -> dict[str, list[int]]:
    """Pattern -> its prompts; the data source itself comes before patterns, the first of these before others."""
    if not weights or any(not 0 < weight < float("inf") for weight in weights.values()):
        raise ConfigError(KEY, f"must have a weight above 0 for each data source, not {dict(weights)!r:.100}")
    rows: dict[str, list[int]] = {name: [] for name in weights}
    for prompt in prompts:
        source = prompt.data_source
        name = source if source in rows else next((each for each in rows if fnmatchcase(source, each)), None)
        if name is None:
            raise ConfigError(KEY, f"has no weight for the data source '{source}'")
        rows[name].append(prompt.index)
    for name, own in rows.items():
        if not own:
            raise ConfigError(f"{KEY}.{name}", "is the weight of no prompt of the training data")
    return rows


def _counts(weights: Sequence[float], size: int) -> list[int]:
    """Numbers of prompts, at least one each, with the sum ``size``: by largest remainder."""
    exact = [weight / sum(weights) * size for weight in weights]
    counts = [max(1, int(share)) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda number: counts[number] - exact[number])
    for number in by_remainder[: max(0, size - sum(counts))]:
        counts[number] += 1
    counts[counts.index(max(counts))] += size - sum(counts)
    return counts


def _walk(rows: Sequence[int], start: int, count: int, seed: Sequence[int]) -> list[int]:
    """``count`` prompts of endless walks through ``rows``, from the place ``start``."""
    taken: list[int] = []
    while len(taken) < count:
        walk, place = divmod(start + len(taken), len(rows))
        order = np.random.default_rng([*seed, 2**31, walk]).permutation(len(rows))
        taken += [rows[each] for each in order[place : place + count - len(taken)]]
    return taken
