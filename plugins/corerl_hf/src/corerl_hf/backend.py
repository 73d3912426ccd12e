"""Rollout backend ``hf``: a transformers model in this process."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished
from corerl.errors import RunError
from corerl.models import compute_dtype
from corerl_hf.batching import plan_batches
from corerl_hf.decoding import Batch
from corerl_hf.options import HfOptions
from corerl_hf.weights import Weights
from corerl_torch.loading import load_causal_lm

MAX_PREFILL_TOKENS = {"cpu": 512, "cuda": 32768}

QUEUE_POLL_SECONDS = 0.001


@dataclass(eq=False)
class _Call:
    """One call of ``generate``, queued or running; ``aborted`` holds ids of its requests that are to end."""

    requests: Sequence[GenerationRequest]
    aborted: set[str] = field(default_factory=set)

    def abort(self, request_ids: Iterable[str]) -> None:
        self.aborted.update({request.request_id for request in self.requests}.intersection(request_ids))


class HfBackend:
    """Generates with transformers in the thread that awaits; between tokens other tasks of its event loop run.

    A thread of its own would cost half of the speed on two cores: each thread that computes has its own pool of OpenMP
    threads, and two pools get in each other's way.

    See :class:`corerl.contracts.rollout_backends.RolloutBackend`. Calls queue and share no batch. The weights loaded
    from ``model.path`` have version 0.
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
        self._closed = False
        self._calls: list[_Call] = []
        self._lock = threading.Lock()
        self._generating_thread: int | None = None

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        """Generate; a cancelled call ends at its next token.

        Raises:
            RunError: a prompt is empty or has an id outside the vocabulary, or the weights are not there.
            NonFiniteError: the model gave a logit that is NaN or infinite.
        """
        self.health()
        for request in requests:
            request.check_prompt(self._vocabulary)
        call = _Call(requests)
        self._calls.append(call)
        try:
            async with self._turn():
                return await self._generate(call, on_finished)
        finally:
            self._calls.remove(call)

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        """Copy all weights in, once a call that runs in another thread is done; nothing on the way could change them.

        Raises:
            RunError: a tensor is missing, unknown or of another shape, after which nothing is generated before a
                complete update; or a call of this thread is not done.
        """
        with self._exclusive():
            self._weights.allocate()
            self._not_ready = "the last weight update was not complete"
            self._weights.copy_from(weights)
            self._not_ready, self._version = "", version

    def sleep(self) -> None:
        """Free the memory of the weights; the KV cache lives no longer than a call anyway."""
        with self._exclusive():
            self._weights.drop()
            self._not_ready = "it was put to sleep, and its weights were not sent again"
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def wake(self, *, kv_cache: bool = True) -> None:
        """Take memory for the weights; they must be sent again before generating."""
        with self._exclusive():
            self._weights.allocate()

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
        for call in list(self._calls):
            call.abort(request.request_id for request in call.requests)
        if self._generating_thread != threading.get_ident():
            self.sleep()
        self._closed = True

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait, without blocking the event loop, until no other call runs."""
        while not self._lock.acquire(blocking=False):
            await asyncio.sleep(QUEUE_POLL_SECONDS)
        self._generating_thread = threading.get_ident()
        try:
            yield
        finally:
            self._generating_thread = None
            self._lock.release()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Block until no call runs."""
        self.health()
        if self._generating_thread == threading.get_ident():
            raise RunError("the weights of the rollout backend hf cannot change while generate() runs: await it first")
        with self._lock:
            yield

    async def _generate(self, call: _Call, on_finished: OnFinished | None) -> list[list[Completion]]:
        self.health()
        if self._not_ready:
            raise RunError(f"the rollout backend hf cannot generate: {self._not_ready}")
        completions: list[dict[int, Completion]] = [{} for _ in call.requests]
        for rows in plan_batches(call.requests, self._max_batch_size):
            batch = Batch(self._model, rows, max_prefill_tokens=self._max_prefill_tokens, aborted=call.aborted)
            going = True
            while going:
                going = batch.advance()
                for index, completion in batch.responses.take_finished(self._version).items():
                    number, sample, request = rows[index]
                    completions[number][sample] = completion
                    if on_finished is not None and len(completions[number]) == request.sampling.n:
                        on_finished(number, _in_order(completions[number]))
                await asyncio.sleep(0)
        return [_in_order(samples) for samples in completions]


def _in_order(samples: Mapping[int, Completion]) -> list[Completion]:
    return [samples[number] for number in sorted(samples)]
