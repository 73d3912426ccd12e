"""Context parallel: ranks that share the rows; each has a part of the packed tokens, and in attention all their keys.

Before attention the ranks gather the keys and values of all tokens; the backward pass sums the gradients of keys and
values and scatters them (Grattafiori et al. 2024, "The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.2). No
number of heads limits the size. A part is two of twice as many chunks as ranks: the chunk with the most keys to read
goes with the one with the least, and so on; in one long row these are the first and the last chunk, as in the paper.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from corerl.contracts.token_columns import moved
from corerl_torch.layout import Layout
from corerl_torch.sequence_parallel import KEY as ULYSSES
from corerl_torch.sequence_parallel import SequenceGroup, Slice, gathered, ranks_apart, sequence_group

KEY = "actor.strategy.context_parallel_size"

_NEW = hasattr(dist, "all_gather_single")  # names since torch 2.13
ALL_GATHER: Any = getattr(dist, "all_gather_single" if _NEW else "all_gather_into_tensor")
REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single" if _NEW else "reduce_scatter_tensor")


@dataclass(frozen=True)
class ContextGroup:
    """``size`` ranks; this is the ``rank``-th of them.

    Attributes:
        multiple: of which the tokens of a rank are: the ranks that share them further.
    """

    size: int
    rank: int
    group: Any
    multiple: int = 1

    def slice(self, layout: Layout) -> Slice:
        """This rank's tokens, in the order of the rows; the layout is on the CPU.

        If the tokens do not divide, filler tokens form an additional last row. The bounds of the rows become those of
        this rank's segments: the tokens of a row in one of its chunks, which read the keys of the row up to their last
        token. ``key_index`` has the place of each of these keys among the gathered ones.
        """
        rows, chunks = _Rows.of(layout), 2 * self.size
        unit = self.multiple // math.gcd(self.multiple, 2)
        length = -(-rows.tokens // (chunks * unit)) * unit
        padding = chunks * length - rows.tokens
        segments = rows.filled(padding).cut(length, chunks)
        owner = torch.empty(chunks, dtype=torch.int64)
        owner[torch.argsort(segments.work, stable=True)] = torch.tensor(
            [*range(self.size), *reversed(range(self.size))]
        )
        by_rank = torch.argsort(owner, stable=True)  # its two chunks in order, then those of the next rank
        places = (torch.argsort(by_rank)[:, None] * length + torch.arange(length)).flatten()  # of tokens, rank by rank
        own_chunks = by_rank[2 * self.rank : 2 * self.rank + 2]
        tokens = (own_chunks[:, None] * length + torch.arange(length)).flatten()
        inputs = layout.inputs | segments.of_chunks(own_chunks, places)
        for name in ("input_ids", "position_ids"):
            inputs[name] = pad(inputs[name], (0, padding))[..., tokens]
        owners = owner[layout.positions // length]
        own = (owners == self.rank).nonzero().flatten()
        positions = places[layout.positions[own]] - self.rank * 2 * length
        counts = torch.bincount(owners, minlength=self.size).tolist()
        numbers = pad(layout.tokens, (0, padding), value=-1)[tokens]
        order = torch.argsort(torch.argsort(owners, stable=True))
        return Slice(Layout(inputs, positions, layout.real, numbers), own, counts, order)

    def gather_keys(self, key: Tensor, value: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (1, heads, len(index), size) of all ranks, from those of this rank's tokens.

        A gradient is summed over the ranks in float32 at least.
        """
        own = [each.squeeze(0).transpose(0, 1) for each in (key, value)]
        heads, sizes = key.shape[1], [each.shape[-1] for each in own]
        flat = torch.cat([each.flatten(1) for each in own], dim=1)
        found = _Keys.apply(flat, index, heads * sizes[0], self)  # type: ignore[no-untyped-call]
        keys, values = (
            each.unflatten(1, (heads, size)).transpose(0, 1)[None] for each, size in zip(found, sizes, strict=True)
        )
        return keys, values


class _Rows(NamedTuple):
    """Rows of a layout.

    Attributes:
        queries, keys: (rows + 1,) int64 bounds of their tokens and keys.
        tokens_of_keys: (keys,) int64, the token of each key.
    """

    queries: Tensor
    keys: Tensor
    tokens_of_keys: Tensor

    @classmethod
    def of(cls, layout: Layout) -> "_Rows":
        inputs = layout.inputs
        queries, keys = (inputs[name].long() for name in ("cu_seq_lens_q", "cu_seq_lens_k"))
        return cls(queries, keys, inputs.get("key_index", torch.arange(int(queries[-1]))))

    @property
    def tokens(self) -> int:
        return int(self.queries[-1])

    def filled(self, tokens: int) -> "_Rows":
        """With a last row of so many tokens more."""
        if not tokens:
            return self
        queries, keys = (torch.cat([each, each[-1:] + tokens]) for each in (self.queries, self.keys))
        return _Rows(queries, keys, torch.cat([self.tokens_of_keys, torch.arange(self.tokens, self.tokens + tokens)]))

    def cut(self, length: int, chunks: int) -> "_Segments":
        """The parts of the rows in each chunk of so many tokens."""
        cuts = torch.unique(torch.cat([self.queries, torch.arange(chunks + 1) * length]))
        starts, ends = cuts[:-1], cuts[1:]
        rows = torch.searchsorted(self.queries, starts, right=True) - 1
        first, last = self.keys[rows], self.keys[rows + 1] - (self.queries[rows + 1] - ends)
        chunk, queries = starts // length, ends - starts
        read = queries * (last - first) - queries * (queries - 1) // 2
        work = torch.zeros(chunks, dtype=torch.int64).index_add_(0, chunk, read)
        return _Segments(chunk, queries, first, last, work, self.tokens_of_keys)


class _Segments(NamedTuple):
    """Parts of rows that lie in a chunk each, in order.

    Attributes:
        chunk, queries: of each, the chunk and the number of tokens.
        first, last: of each, the bounds of its keys in ``tokens_of_keys``.
        work: (chunks,), pairs of a query and a key that it reads.
        tokens_of_keys: (keys,) int64, the token of each key.
    """

    chunk: Tensor
    queries: Tensor
    first: Tensor
    last: Tensor
    work: Tensor
    tokens_of_keys: Tensor

    def of_chunks(self, chunks: Tensor, places: Tensor) -> dict[str, Any]:
        """The model's inputs that tell the segments of some chunks apart.

        Args:
            places: of each token, where its key is among the gathered ones.
        """
        mine = torch.isin(self.chunk, chunks)
        queries, bounds = self.queries[mine], zip(self.first[mine].tolist(), self.last[mine].tolist(), strict=True)
        index = torch.cat([self.tokens_of_keys[slice(*each)] for each in bounds])
        keys = self.last[mine] - self.first[mine]
        return {
            "cu_seq_lens_q": _bounds(queries),
            "cu_seq_lens_k": _bounds(keys),
            "max_length_q": int(queries.max()),
            "max_length_k": int(keys.max()),
            "key_index": places[index],
        }


def _bounds(lengths: Tensor) -> Tensor:
    return pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


class _Keys(torch.autograd.Function):
    """(tokens, width) of each rank → the rows ``index`` of those of all ranks, cut at column ``cut``."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, index: Tensor, cut: int, context: ContextGroup) -> tuple[Tensor, Tensor]:
        ctx.context, ctx.shape, ctx.dtype = context, own.shape, own.dtype
        ctx.save_for_backward(index)
        whole = own.new_empty(context.size * own.shape[0], own.shape[1])
        ALL_GATHER(whole, own.contiguous(), group=context.group)
        return whole[:, :cut].index_select(0, index), whole[:, cut:].index_select(0, index)

    @staticmethod
    def backward(ctx: Any, keys: Tensor, values: Tensor) -> tuple[Tensor, None, None, None]:
        (index,) = ctx.saved_tensors
        exact = torch.promote_types(ctx.dtype, torch.float32)
        whole = keys.new_zeros(ctx.context.size * ctx.shape[0], ctx.shape[1], dtype=exact)
        cut = keys.shape[1]
        for columns, gradient in ((whole[:, :cut], keys), (whole[:, cut:], values)):
            columns.index_add_(0, index, gradient.to(exact))
        own = whole.new_empty(ctx.shape)
        REDUCE_SCATTER(own, whole, group=ctx.context.group)
        return own.to(ctx.dtype), None, None, None


class Shared(NamedTuple):
    """This rank's share of a packed micro-batch.

    Attributes:
        layout: its tokens.
        own: (n,) int64, its own among all response tokens.
        slices: of each way to share, in order.
    """

    layout: Layout
    own: Tensor
    slices: list[Slice]


@dataclass(frozen=True)
class RowGroup:
    """The ranks that share rows with this one: by context, by heads (Ulysses), or each part of the context by heads."""

    context: ContextGroup | None = None
    heads: SequenceGroup | None = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return (self.context.size if self.context else 1) * (self.heads.size if self.heads else 1)

    @property
    def name(self) -> str:
        """Of the two sizes."""
        return f"{self.context.size if self.context else 1}x{self.heads.size if self.heads else 1}"

    @property
    def key(self) -> str:
        """The config key of the way to share."""
        return KEY if self.context else ULYSSES

    @property
    def groups(self) -> list[ContextGroup | SequenceGroup]:
        """In the order in which they divide the tokens."""
        return [each for each in (self.context, self.heads) if each is not None]

    def slice(self, layout: Layout) -> Shared:
        """This rank's tokens."""
        own, slices = torch.arange(len(layout.positions)), []
        for group in self.groups:
            each = group.slice(layout)
            own, layout = own[each.own], each.layout
            slices.append(each)
        return Shared(layout, own, slices)

    def gather(self, values: Tensor, slices: list[Slice]) -> Tensor:
        """(N, ...) of all ranks' response tokens, from this rank's; a gradient returns to this rank's only."""
        for group, each in reversed([*zip(self.groups, slices, strict=True)]):
            values = gathered(values, each.counts, group)
            if each.order is not None:
                values = values.index_select(0, moved(each.order, values.device))
        return values


def row_group(context: int, heads: int, timeout: float, apart: int = 1) -> RowGroup | None:
    """This rank's group, of consecutive ranks; None if both sizes are 1. A collective.

    Args:
        context, heads: numbers of ranks.
        apart: distance of its ranks.

    Raises:
        ConfigError: the sizes do not divide the number of ranks.
    """
    by_heads = sequence_group(heads, timeout, apart)
    rank, group = ranks_apart(context, timeout, apart * heads, KEY)
    by_context = ContextGroup(context, rank, group, heads) if context > 1 else None
    return RowGroup(by_context, by_heads) if by_context or by_heads else None
