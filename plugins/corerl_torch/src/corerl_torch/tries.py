"""Prefix sharing: packed rows as a trie of tokens, whose common prefixes are computed once.

In lexicographic order, no earlier row has a longer prefix in common with a row than the row before it. So each row adds
the tokens behind this prefix. Its attention reads the keys of its whole path: tokens of earlier rows, then its own.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from corerl.contracts.experience import Experience
from corerl.errors import ConfigError
from corerl_torch.layout import Layout, packed
from corerl_torch.media import images_of_rows
from corerl_torch.media_store import COLUMN as IMAGES
from corerl_torch.routers import COLUMN

KEY = "actor.strategy.share_prefixes"

PARALLEL_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""types of layers that read other tokens by attention alone"""

KEYS = 16
"""Keys that a micro-batch may gather for each token of its limit. A key counts once for each row that reads it."""

Tokens = NDArray[np.int64]


class Trie(NamedTuple):
    """The model's input tokens of B rows: all but the last of each, which predicts nothing.

    Attributes:
        order: the rows, sorted by their tokens.
        lengths: input tokens of each row of ``order``.
        shared: tokens that each row of ``order`` has in common with the row before it; 0 for the first.
    """

    order: list[int]
    lengths: list[int]
    shared: list[int]

    @classmethod
    def of(cls, batch: Experience) -> "Trie":
        tokens, lengths = _distinct(batch), _input_lengths(batch)
        sortable = tokens.astype(">u8")  # of big-endian numbers, bytes have the order of the numbers
        order = sorted(range(len(lengths)), key=lambda row: sortable[row, : lengths[row]].tobytes())
        shared = [_common(tokens, lengths, *rows) for rows in itertools.pairwise(order)]
        return cls(order, [int(lengths[row]) for row in order], [0, *shared][: len(order)])

    def tokens(self, start: int = 0, end: int | None = None) -> int:
        """Distinct tokens of the rows from ``start`` to ``end`` in ``order``."""
        own = sum(self.lengths[start:end]) - sum(self.shared[start:end])
        return own + (self.shared[start] if self.shared else 0)

    def parts(self, max_tokens: int) -> list[tuple[int, int]]:
        """Ranges of ``order`` of at most so many tokens, or of one row.

        A subtree that fits is not divided. Neighbouring branches of a larger one stay together while they fit.
        """
        sizes = self._sizes()
        found, left = [], [(0, len(self.order))] if self.order else []
        while left:
            start, end = left.pop()
            if end - start == 1 or sizes.fit(start, end, max_tokens):
                found.append((start, end))
                continue
            depth = min(self.shared[start + 1 : end])
            starts = [start, *(row for row in range(start + 1, end) if self.shared[row] == depth), end]
            first = start
            for branch, after in itertools.pairwise(starts):
                if branch > first and not sizes.fit(first, after, max_tokens):
                    left.append((first, branch))
                    first = branch
            left.append((first, end))
        return found

    def _sizes(self) -> "_Sizes":
        lengths, shared = np.array(self.lengths), np.array(self.shared)
        return _Sizes(self.shared, [0, *np.cumsum(lengths - shared).tolist()], [0, *np.cumsum(lengths).tolist()])


class _Sizes(NamedTuple):
    """Sums of tokens up to each row of the order: those that rows add, and those of whole rows."""

    shared: list[int]
    added: list[int]
    keys: list[int]

    def fit(self, start: int, end: int, max_tokens: int) -> bool:
        tokens = self.added[end] - self.added[start] + self.shared[start]
        return tokens <= max_tokens and self.keys[end] - self.keys[start] <= KEYS * max_tokens


def shared_prefixes(batch: Experience) -> Layout:
    """(1, tokens): as :func:`~corerl_torch.layout.packed`, with the tokens of common prefixes once.

    ``key_index`` (keys,) int64 has the token of each key: those of all rows that add tokens, end to end, from their
    first token on. ``cu_seq_lens_q`` bounds the tokens that rows add, ``cu_seq_lens_k`` their keys. Without a common
    prefix this is the layout of packed rows.
    """
    trie = Trie.of(batch)
    if not any(trie.shared):
        return packed(batch)
    tokens, width = batch.input_ids.cpu().numpy(), max(trie.lengths)
    paths = np.zeros((len(batch), width), np.int64)
    before, added = trie.order[0], 0
    for row, length, common in zip(*trie, strict=True):
        paths[row, :common] = paths[before, :common]
        paths[row, common:length] = np.arange(added, added + length - common)
        before, added = row, added + length - common
    adding = [each for each in zip(*trie, strict=True) if each[1] > each[2]]
    queries, keys = [length - common for _, length, common in adding], [length for _, length, _ in adding]
    device = batch.input_ids.device

    def joined(parts: list[Tokens]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device, non_blocking=True)

    real = batch.prediction_index(width)[1]
    rows, steps = real.nonzero(as_tuple=True)
    positions = torch.from_numpy(paths).to(device, non_blocking=True)[rows, batch.prompt_lengths[rows] - 1 + steps]
    inputs: dict[str, Any] = {
        "input_ids": joined([tokens[row, common:length] for row, length, common in adding])[None],
        "position_ids": joined([np.arange(common, length) for _, length, common in adding])[None],
        "cu_seq_lens_q": _bounds(queries, device),
        "cu_seq_lens_k": _bounds(keys, device),
        "max_length_q": max(queries),
        "max_length_k": max(keys),
        "key_index": joined([paths[row, :length] for row, length, _ in adding]),
    }
    numbers = np.arange(tokens.size).reshape(tokens.shape)
    own = joined([numbers[row, common:length] for row, length, common in adding])
    return Layout(inputs, positions, real, own)


def shares(
    wanted: bool | None, model: Any, attn_implementation: str, *, packs: bool, ranks: int, probed: str = ""
) -> bool:
    """Whether to share prefixes.

    Args:
        wanted: None: if possible.
        model: of transformers.
        packs: rows are packed.
        ranks: that share the tokens of a row.
        probed: why the probe of the model found other numbers; '' if it did not.

    Raises:
        ConfigError: it is wanted and not possible.
    """
    if wanted is False:
        return False
    found = _obstacle(model, attn_implementation, packs, ranks)
    if not found and probed:
        found = f"by {type(model).__name__}: {probed}"
    if found and wanted:
        raise ConfigError(KEY, f"prefixes cannot be shared {found}: set it to null or false")
    return not found


def _obstacle(model: Any, attn_implementation: str, packs: bool, ranks: int) -> str:
    if not packs:
        return "among padded rows (use_remove_padding=false)"
    if ranks > 1:
        return f"if {ranks} ranks share the tokens of a row (ulysses_sequence_parallel_size)"
    if attn_implementation != "sdpa":
        return f"with model.attn_implementation={attn_implementation}, but with sdpa"
    return sequential(model.config, type(model).__name__, stateful=getattr(model, "_is_stateful", False))


def sequential(config: Any, name: str, *, stateful: bool = False) -> str:
    """Which layers of a model read other tokens by more than attention, as the end of a sentence; '' if none do.

    Args:
        config: of a transformers model.
        stateful: the model's class says that its layers have a state.
    """
    if stateful:
        return f"by {name}, whose layers carry a state from token to token"
    types = set(getattr(config.get_text_config(), "layer_types", None) or ()) - PARALLEL_LAYERS
    return f"by {name}, which has layers of type {', '.join(sorted(types))}" if types else ""


def _input_lengths(batch: Experience) -> Tokens:
    lengths: Tokens = (batch.lengths - 1).clamp(min=1).cpu().numpy()
    return lengths


def _distinct(batch: Experience) -> Tokens:
    """Numbers that are equal for equal tokens; tokens whose replayed experts or images differ are different tokens."""
    tokens: Tokens = batch.input_ids.cpu().numpy().astype(np.int64)
    for row, images in enumerate(images_of_rows(batch.columns.get(IMAGES), len(tokens))):
        for image in images:
            tokens[row, image.start] += int.from_bytes(image.digest[:8], "big") >> 2
    column = batch.columns.get(COLUMN)
    if column is None or not len(column.values):
        return tokens
    experts, known = column.values.cpu().numpy().reshape(len(column.values), -1), column.counts.cpu().numpy() > 0
    factors = np.random.default_rng(0).integers(1, 2**62, experts.shape[1])
    tokens[:, : known.shape[1]][known] += np.dot(experts.astype(np.int64) + 1, factors)  # a digest: sums wrap around
    return tokens


def _common(tokens: Tokens, lengths: Tokens, left: int, right: int) -> int:
    """Tokens that two rows have in common at their start."""
    least = int(min(lengths[left], lengths[right]))
    differ = tokens[left, :least] != tokens[right, :least]
    return int(differ.argmax()) if differ.any() else least


def _bounds(lengths: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32).to(device, non_blocking=True)
