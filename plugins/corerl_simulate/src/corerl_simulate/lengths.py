"""Numbers of tokens of responses, drawn by the seed of a request."""

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from corerl.errors import RequestError
from corerl.files import reading_file
from corerl.terminal.notices import say

KINDS = "a number of tokens, lognormal:MEAN:SIGMA, or a file or folder of rollouts (.parquet)"

MOST = 10**9
"""tokens, as a mean"""
WIDEST = 5.0
"""standard deviation of the logarithm"""


class Lengths(Protocol):
    """A distribution."""

    def of(self, seed: int, sample: int) -> int:
        """Tokens of one response, 1 or more."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same for every response."""

    tokens: int

    def of(self, seed: int, sample: int) -> int:
        return self.tokens


@dataclass(frozen=True)
class LogNormal:
    """A log-normal distribution.

    Attributes:
        median: tokens.
        sigma: standard deviation of the logarithm.
        whole_groups: the responses of a group have one length.
    """

    median: float
    sigma: float
    whole_groups: bool = False

    @classmethod
    def with_mean(cls, mean: float, sigma: float) -> "LogNormal":
        """The mean of a log-normal is exp(sigma² / 2) times its median."""
        return cls(mean / math.exp(sigma**2 / 2), sigma)

    def of(self, seed: int, sample: int) -> int:
        own = random.Random(seed if self.whole_groups else hash((seed, sample)))
        return max(1, round(own.lognormvariate(math.log(self.median), self.sigma)))


@dataclass(frozen=True)
class Drawn:
    """One of the lengths that a run had."""

    tokens: tuple[int, ...]

    def of(self, seed: int, sample: int) -> int:
        return self.tokens[hash((seed, sample)) % len(self.tokens)]


def lengths_of(given: str) -> Lengths:
    """
    Args:
        given: see ``KINDS``.

    Raises:
        RequestError: it is none of these, or the files have no responses.
    """
    if given.isdecimal() and int(given):
        return Fixed(int(given))
    if given.startswith("lognormal:"):
        try:
            mean, sigma = map(float, given.split(":")[1:])
            if 1 <= mean <= MOST and 0 <= sigma <= WIDEST:
                return LogNormal.with_mean(mean, sigma)
        except ValueError:
            pass
        limits = f"MEAN from 1 to {MOST}, SIGMA from 0 to {WIDEST:.0f}"
        raise RequestError(f"--lengths {given}: write lognormal:MEAN:SIGMA, such as lognormal:800:0.8; {limits}")
    path = Path(given)
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        raise RequestError(f"--lengths {given}: must be {KINDS}")
    return Drawn(_read(files))


def _read(files: list[Path]) -> tuple[int, ...]:
    import pyarrow.parquet as pq

    found: list[int] = []
    for file in files:
        try:
            with reading_file(file):
                if "response_length" in pq.read_schema(file).names:
                    column = pq.read_table(file, columns=["response_length"]).column("response_length")
                    found += [int(each) for each in column.to_pylist() if each]
        except RequestError as error:
            say(f"left out: {error}")
    if not found:
        raise RequestError(f"--lengths {files[0]}: no column response_length with a value above 0")
    return tuple(found)
