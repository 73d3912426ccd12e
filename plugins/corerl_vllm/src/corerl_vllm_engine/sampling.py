"""Tokens and log-probs of a step by two kernels, for requests without filters, penalties and lists of tokens.

vLLM's second model runner samples by one kernel and a reduction, and then reads the logits again for log-probs and for
ranks, by one program a row. Here one pass over the logits finds everything. The Gumbel noise of a token comes from
vLLM's own function, so at temperatures 0 and 1 the tokens are vLLM's. At others, vLLM rounds the divided logits to
their own dtype, and this module computes in float32: tokens may differ.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.sample.gumbel import gumbel_block_argmax
from vllm.v1.worker.gpu.sample.output import SamplerOutput

BLOCK = 4096
"""tokens of the vocabulary that one program reads"""

NOISE = (
    *("logits", "block", "mask", "token_idx", "expanded_idx_mapping_ptr", "temp_ptr", "seeds_ptr", "pos_ptr"),
    *("processed_logits_ptr", "processed_logits_stride", "processed_logits_col_ptr", "vocab_size"),
    *("APPLY_TEMPERATURE", "USE_FP64", "PER_TOKEN_COL"),
)
"""arguments of vLLM's function with the noise, in the releases that this module was tested with"""

STATES = ("sampling_states", "penalties_state", "logit_bias_state", "bad_words_state", "logprob_token_ids_state")
"""attributes of a sampler with the parameters of requests, likewise"""


def use_in(runner: Any) -> bool:
    """Sample by this module in vLLM's second model runner; False: this release of vLLM has another sampler."""
    sampler = runner.sampler
    known = all(hasattr(sampler, name) for name in STATES) and tuple(gumbel_block_argmax.arg_names) == NOISE
    if known:
        runner.sampler = Sampler(sampler)
    return known


class Sampler:
    """In front of vLLM's sampler, to which it leaves all other requests."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._rows: Any = None
        """requests of the last step"""
        self._is_plain = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def __call__(self, logits: Any, batch: Any) -> Any:
        if batch.idx_mapping_np is not self._rows:
            self._rows, self._is_plain = batch.idx_mapping_np, self._finds_plain(batch.idx_mapping_np)
        if not self._is_plain or batch.num_draft_tokens or len(logits) != batch.num_reqs:
            return self._sampler(logits, batch)
        places = batch.positions[batch.logits_indices]
        states, prefilled = self._sampler.sampling_states, self._sampler.req_states.prefill_len.gpu
        tokens, log_probs, counts = sample(
            logits, batch.idx_mapping, states.temperature.gpu, states.seeds.gpu, places, batch.seq_lens, prefilled
        )
        reported = LogprobsTensors(tokens, log_probs, torch.ones_like(counts))  # nobody asks for ranks
        return SamplerOutput(tokens, reported, None, counts, torch.zeros_like(counts))

    def _finds_plain(self, rows: Any) -> bool:
        """Whether each of the requests asks for the log-prob of its token, and for nothing else."""
        own = self._sampler
        states = own.sampling_states
        return not (
            states.num_logprobs[rows].any()
            or states.min_p.np[rows].any()
            or (states.top_k.np[rows] != states.vocab_size).any()
            or (states.top_p.np[rows] != 1.0).any()
            or own.penalties_state.use_penalty[rows].any()
            or own.logit_bias_state.use_logit_bias[rows].any()
            or own.bad_words_state.num_bad_words.np[rows].any()
            or own.logprob_token_ids_state.num_token_ids.np[rows].any()
            or own.compute_nans
            or own.use_fp64_gumbel
        )


def sample(logits: Any, rows: Any, temperature: Any, seeds: Any, places: Any, lengths: Any, prefilled: Any) -> Any:
    """Tokens (n, 1) int64, their log-probs (n, 1) float32, and the number of tokens of each row, (n,) int32: 1, or 0
    for a row in the middle of its prompt.

    Args:
        logits: (n, vocabulary); a row's elements are contiguous.
        rows: (n,), the place of a row's request in the next three.
        temperature: (requests,); 0: the most likely token, and its log-prob at temperature 1.
        seeds: (requests,).
        places: (n,), positions of the tokens in their sequences.
        lengths: (n,) int32, of the sequences.
        prefilled: (requests,), their length from which on tokens are sampled.
    """
    count, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    width = triton.next_power_of_2(blocks)
    values = logits.new_empty((4, count, blocks), dtype=torch.float32)
    found = logits.new_empty((count, blocks), dtype=torch.int32)
    tokens = logits.new_empty((count, 1), dtype=torch.int64)
    log_probs = logits.new_empty((count, 1), dtype=torch.float32)
    counts = torch.empty_like(lengths[:count])
    _blocks[(count, blocks)](
        logits, logits.stride(0), rows, temperature, seeds, places, *values, found, vocabulary, blocks, BLOCK=BLOCK
    )
    _rows[(count,)](*values, found, rows, lengths, prefilled, tokens, log_probs, counts, blocks, WIDTH=width)
    return tokens, log_probs, counts


@triton.jit  # type: ignore[untyped-decorator]
def _blocks(  # type: ignore[no-untyped-def]  # triton reads annotations
    logits,
    stride,
    rows,
    temperature,
    seeds,
    places,
    largest,
    sums,
    best,
    chosen,
    found,
    vocabulary,
    blocks,
    BLOCK: tl.constexpr,
):
    """Of one row and one block of the vocabulary: the largest logit, the sum of exponentials beside it, the largest
    logit with noise, its logit, and its token."""
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < vocabulary
    degree = tl.load(temperature + tl.load(rows + row)).to(tl.float32)
    degree = tl.where(degree == 0.0, 1.0, degree)
    values = tl.load(logits + row * stride + tokens, mask=inside, other=float("-inf")).to(tl.float32) / degree
    most = tl.max(values, axis=0)
    most_or_none = tl.where(most == float("-inf"), 0.0, most)
    noisy, index = gumbel_block_argmax(
        values,
        tokens,
        inside,
        row,
        rows,
        temperature,
        seeds,
        places,
        None,
        0,
        None,
        vocabulary,
        APPLY_TEMPERATURE=False,
        USE_FP64=False,
    )
    at = row * blocks + tl.program_id(1)
    tl.store(largest + at, most)
    tl.store(sums + at, tl.sum(tl.exp(values - most_or_none), axis=0))
    tl.store(best + at, noisy)
    tl.store(chosen + at, tl.max(tl.where(tl.arange(0, BLOCK) == index, values, float("-inf")), axis=0))
    tl.store(found + at, tl.program_id(1) * BLOCK + index)


@triton.jit  # type: ignore[untyped-decorator]
def _rows(  # type: ignore[no-untyped-def]  # triton reads annotations
    largest,
    sums,
    best,
    chosen,
    found,
    rows,
    lengths,
    prefilled,
    tokens,
    log_probs,
    counts,
    blocks,
    WIDTH: tl.constexpr,
):
    """The token of a row and its log-prob, from those of its blocks."""
    row = tl.program_id(0)
    block = tl.arange(0, WIDTH)
    inside = block < blocks
    at = row * blocks + block
    most = tl.load(largest + at, mask=inside, other=float("-inf"))
    top = tl.max(most, axis=0)
    total = tl.sum(tl.load(sums + at, mask=inside, other=0.0) * tl.exp(most - top), axis=0)
    index = tl.argmax(tl.load(best + at, mask=inside, other=float("-inf")), axis=0)
    tl.store(tokens + row, tl.load(found + row * blocks + index).to(tl.int64))
    tl.store(log_probs + row, tl.load(chosen + row * blocks + index) - top - tl.log(total))
    whole = tl.load(lengths + row) >= tl.load(prefilled + tl.load(rows + row))
    tl.store(counts + row, whole.to(tl.int32))
