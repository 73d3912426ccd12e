"""Rollout backend ``hf``: a transformers model in this process."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from corerl.config.schema import ModelConfig, RolloutConfig
from corerl.errors import RunError
from corerl.models import compute_dtype, load_causal_lm
from corerl.registry.rollout_backends import Completion, GenerationRequest
from corerl_hf.batching import plan_batches
from corerl_hf.decoding import decode
from corerl_hf.options import HfOptions
from corerl_hf.weights import Weights

P = ParamSpec("P")
T = TypeVar("T")

MAX_PREFILL_TOKENS = {"cpu": 512, "cuda": 32768}


@dataclass
class _Call:
    """One call of ``generate``, queued or running; ``aborted`` holds ids of its requests that are to end."""

    requests: Sequence[GenerationRequest]
    aborted: set[str] = field(default_factory=set)

    def abort(self, request_ids: Iterable[str]) -> None:
        self.aborted.update({request.request_id for request in self.requests}.intersection(request_ids))


class HfBackend:
    """Generates with transformers, in one worker thread that owns the model: calls queue and never share a batch.

    See :class:`corerl.registry.rollout_backends.RolloutBackend`. The weights loaded from ``model.path`` have version 0.
    """

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, device: str, options: HfOptions) -> None:
        self._max_batch_size = options.max_batch_size
        self._max_prefill_tokens = options.max_prefill_tokens or MAX_PREFILL_TOKENS[device]
        self._model = load_causal_lm(model, device=device, dtype=compute_dtype(model, device))
        self._model.requires_grad_(False).eval()
        self._weights = Weights(self._model)
        self._vocabulary = self._model.get_input_embeddings().num_embeddings
        self._version = 0
        self._not_ready = ""
        self._calls: list[_Call] = []
        self._closed = False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="corerl-hf")

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Generate; when the awaiting task is cancelled the requests end at their next token.

        Raises:
            RunError: a prompt is empty or has an id outside the vocabulary, or the weights are not there.
            NonFiniteError: the model gave a logit that is NaN or infinite.
        """
        self.health()
        for request in requests:
            self._check(request)
        call = _Call(requests)
        self._calls.append(call)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, self._generate, call)
        except asyncio.CancelledError:
            call.abort(request.request_id for request in requests)
            raise
        finally:
            self._calls.remove(call)

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy all weights in, once the calls before this one are done.

        Raises:
            RunError: a tensor is missing, unknown or of another shape; nothing is generated before a complete update.
        """
        self._run(self._update_weights, weights, version)

    def sleep(self) -> None:
        """Free the memory of the weights; the KV cache lives no longer than a call anyway."""
        self._run(self._sleep)

    def wake(self) -> None:
        """Take memory for the weights; they must be sent again before generating."""
        self._run(self._weights.allocate)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests at their next token; ids that are not known (any more) are ignored."""
        for call in list(self._calls):
            call.abort(request_ids)

    def health(self) -> None:
        """Raise RunError if the backend is closed."""
        if self._closed:
            raise RunError("the rollout backend hf is closed")

    def close(self) -> None:
        """End what is running and free the weights."""
        if self._closed:
            return
        self._closed = True
        for call in list(self._calls):
            call.abort(request.request_id for request in call.requests)
        self._worker.submit(self._sleep).result()
        self._worker.shutdown()

    def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the worker thread, after everything that is queued there."""
        self.health()
        return self._worker.submit(function, *args, **kwargs).result()

    def _check(self, request: GenerationRequest) -> None:
        if not request.prompt_ids:
            raise RunError(f"request '{request.request_id}' has an empty prompt: at least one token is needed")
        largest = max(request.prompt_ids)
        if min(request.prompt_ids) < 0 or largest >= self._vocabulary:
            raise RunError(
                f"request '{request.request_id}' has a prompt token outside the model's vocabulary of "
                f"{self._vocabulary}: the tokenizer (model.tokenizer_path) must belong to the model"
            )

    def _generate(self, call: _Call) -> list[list[Completion]]:
        if self._not_ready:
            raise RunError(f"the rollout backend hf cannot generate: {self._not_ready}")
        completions: list[dict[int, Completion]] = [{} for _ in call.requests]
        for rows in plan_batches(call.requests, self._max_batch_size):
            decoded = decode(
                self._model,
                rows,
                max_prefill_tokens=self._max_prefill_tokens,
                aborted=call.aborted,
                weight_version=self._version,
            )
            for row, completion in zip(rows, decoded, strict=True):
                completions[row.number][row.sample] = completion
        return [[samples[number] for number in sorted(samples)] for samples in completions]

    def _update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        self._weights.allocate()
        self._not_ready = "the last weight update was not complete"
        self._weights.copy_from(weights)
        self._not_ready, self._version = "", version

    def _sleep(self) -> None:
        self._weights.drop()
        self._not_ready = "it was put to sleep, and its weights were not sent again"
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
