"""The sampler of vLLM's second model runner, for requests without filters, penalties and lists of tokens.

vLLM samples by one kernel and a reduction, and then reads the logits again for log-probs and for ranks, by one program
a row. Here one pass over the logits finds tokens and log-probs (``inverse_transform``).
"""

from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.sample.output import SamplerOutput

from corerl_vllm_engine.inverse_transform import sample

STATES = {
    *("req_states", "sampling_states", "penalties_state", "logit_bias_state", "bad_words_state"),
    "logprob_token_ids_state",
}
"""attributes of a sampler with the parameters of requests, in the releases that this module was tested with"""


def use_in(runner: Any) -> bool:
    """Sample by this module in vLLM's second model runner; False: this release of vLLM has another sampler, or requests
    have parameters of which this module does not know."""
    sampler = runner.sampler
    known = {name for name in vars(sampler) if name.endswith(("_state", "_states"))} == STATES
    if known:
        runner.sampler = Sampler(sampler)
        _compile(runner)
    return known


def _compile(runner: Any) -> None:
    """Compile the kernels by a step of two rows, which takes seconds, before the first generation needs them."""
    states, rows = runner.sampler.sampling_states, torch.arange(2, device=runner.device)
    logits = torch.zeros((2, states.vocab_size), dtype=runner.dtype, device=runner.device)
    lengths = rows.to(torch.int32)
    prefilled = runner.sampler.req_states.prefill_len.gpu
    sample(logits, lengths, states.temperature.gpu, states.seeds.gpu, rows, lengths, prefilled)


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
        positions = batch.positions[batch.logits_indices]
        states, prefilled = self._sampler.sampling_states, self._sampler.req_states.prefill_len.gpu
        tokens, log_probs, counts = sample(
            logits, batch.idx_mapping, states.temperature.gpu, states.seeds.gpu, positions, batch.seq_lens, prefilled
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
        )
