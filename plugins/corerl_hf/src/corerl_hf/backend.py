"""Rollout backend ``hf``: a transformers model in the trainer's process."""

import asyncio
import dataclasses
import functools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import Completion, Decode, GenerationRequest, OnFinished
from corerl.contracts.token_columns import TokenValues
from corerl.data import load_tokenizer
from corerl.errors import RunError
from corerl.models import compute_dtype
from corerl_hf.batching import plan_batches
from corerl_hf.decoding import Batch
from corerl_hf.options import HfOptions
from corerl_hf.sampling import Recorded
from corerl_hf.weights import AdapterWeights, Weights
from corerl_torch import bitwise, tower
from corerl_torch.loading import load_causal_lm
from corerl_torch.media import ImageInputs, reads_images
from corerl_torch.media_store import COLUMN as IMAGES
from corerl_torch.routers import COLUMN, Routers

MAX_PREFILL_TOKENS = {"cpu": 512, "cuda": 32768}

QUEUE_POLL_SECONDS = 0.001


@dataclass(eq=False)
class _Call:
    """One call of ``generate``, queued or running.

    Attributes:
        aborted: ids of requests to end; calls that run together share the set.
        completions: completions of each request, by sample.
        left: number of missing samples.
    """

    requests: Sequence[GenerationRequest]
    on_finished: OnFinished | None
    thread: int = field(default_factory=threading.get_ident)
    aborted: set[str] = field(default_factory=set)
    completions: list[dict[int, Completion]] = field(init=False)
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.completions = [{} for _ in self.requests]
        self.left = sum(request.sampling.n for request in self.requests)

    def abort(self, request_ids: Iterable[str]) -> None:
        self.aborted.update({request.request_id for request in self.requests}.intersection(request_ids))

    def leave(self) -> None:
        """End the call's running requests, in a batch with other calls, and report nothing more."""
        self.on_finished = None
        self.abort(self.requests[number].request_id for number in self.missing())

    def restart(self) -> None:
        """Drop the responses of requests that are not complete."""
        for number in self.missing():
            self.left += len(self.completions[number])
            self.completions[number].clear()

    def add(self, number: int, sample: int, completion: Completion) -> None:
        """Store a response to the request ``number``."""
        self.completions[number][sample] = completion
        self.left -= 1
        if self.on_finished is not None and len(self.completions[number]) == self.requests[number].sampling.n:
            self.on_finished(number, _in_order(self.completions[number]))

    def missing(self) -> list[int]:
        """The requests with missing responses."""
        pairs = enumerate(zip(self.requests, self.completions, strict=True))
        return [number for number, (request, samples) in pairs if len(samples) < request.sampling.n]


class _Joint:
    """Calls of one thread that run together.

    Attributes:
        calls: calls with missing responses; the first one computes.
        steps: computes one token of each row at a time.
    """

    def __init__(self, calls: Sequence[_Call], steps: Callable[["_Joint"], Generator[None, None, None]]) -> None:
        self.aborted = set[str]().union(*(call.aborted for call in calls))
        for call in calls:
            call.aborted = self.aborted
            call.restart()
        self.calls = list(calls)
        self.numbered = [(call, number) for call in calls for number in call.missing()]
        self.steps = steps(self)


class HfBackend:
    """Generates with transformers in the awaiting thread; between tokens, other tasks of its event loop run.

    A separate thread would halve the speed on two cores: every computing thread has its own pool of OpenMP threads, and
    two pools compete for the cores.

    See :class:`corerl.contracts.rollout_backends.RolloutBackend`. Calls queue; waiting calls of one thread run
    together. The weights loaded from ``model.path`` have version 0.
    """

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, device: str, options: HfOptions) -> None:
        self._max_batch_size, self._source = options.max_batch_size, model
        self._max_prefill_tokens = options.max_prefill_tokens or MAX_PREFILL_TOKENS[device]
        top = rollout.top_log_probs if "top_log_probs" in rollout.record else 0
        self._recorded = Recorded("kept_tokens" in rollout.record, top)
        self._model = load_causal_lm(model, device=device, dtype=compute_dtype(model, device))
        self._model.requires_grad_(False).eval()
        self._bitwise = options.bitwise
        if options.bitwise:
            bitwise.check(model, device, on_cuda=False)
            bitwise.use(self._model, device)
        self._routers = Routers(self._model) if COLUMN in rollout.record else None
        if self._routers:
            self._routers.record()
        self._images = ImageInputs(self._model) if reads_images(self._model) else None
        if self._images and not options.bitwise and model.attn_implementation == "sdpa":
            tower.use_kernel(self._images.body, device, compute_dtype(model, device))
        self._weights: Weights | AdapterWeights
        if model.lora_rank and rollout.lora == "adapter":
            self._weights = AdapterWeights(self._model, model, rollout.adapters, options.quantization)
            self._model.requires_grad_(False).eval()
        else:
            self._weights = Weights(self._model, options.quantization)
        self._vocabulary = self._model.get_input_embeddings().num_embeddings
        self._adapters = rollout.adapters if isinstance(self._weights, AdapterWeights) else 1
        self._versions = {0: 0}
        """the version of each adapter that has values; one number stands for all weights"""
        self._not_ready = ""
        self._closed = False
        self._calls: list[_Call] = []
        self._lock = threading.Lock()
        self._generating_thread: int | None = None
        self._joint: _Joint | None = None

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        """Generate; a cancelled call ends at its next token.

        Raises:
            ModelError: a prompt has images, and the model reads text alone.
            RunError: a prompt is empty or has an id outside the vocabulary, or the weights are missing.
            NonFiniteError: the model gave a logit that is NaN or infinite.
        """
        self.health()
        for request in requests:
            request.check_prompt(self._vocabulary)
            if not self._not_ready:
                self._check(request.adapter)
            if isinstance(request.media.get(IMAGES), TokenValues) and self._images is None:
                ImageInputs(self._model)  # raises
        call = _Call(requests, on_finished)
        self._calls.append(call)
        try:
            while call.left:
                if self._computes(call):
                    self._advance()
                    await asyncio.sleep(0)
                else:
                    await asyncio.sleep(QUEUE_POLL_SECONDS)
            return [_in_order(samples) for samples in call.completions]
        finally:
            self._calls.remove(call)
            call.leave()
            self._release()

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        """Copy all weights in, after a call in another thread has ended; there is no transport to verify.

        Raises:
            RunError: a tensor is missing, unknown or of another shape: generation then fails until a complete update;
                or a call of this thread is not done.
        """
        adapter = version % self._adapters
        with self._exclusive():
            self._weights.allocate()
            self._not_ready = "the last weight update was not complete"
            self._versions.pop(adapter, None)
            self._weights.copy_from(weights, adapter)
            self._not_ready, self._versions[adapter] = "", version

    def sleep(self) -> None:
        """Free the memory of the weights; the KV cache exists only during a call."""
        with self._exclusive():
            self._weights.drop()
            self._versions.clear()
            self._not_ready = "it was put to sleep, and its weights were not sent again"
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def wake(self, *, kv_cache: bool = True) -> None:
        """Allocate memory for the weights; they must be sent again before generating."""
        with self._exclusive():
            self._weights.allocate()

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests at their next token; unknown ids are ignored."""
        for call in list(self._calls):
            call.abort(request_ids)

    def health(self) -> None:
        """Raise RunError if the backend is closed."""
        if self._closed:
            raise RunError("the rollout backend hf is closed")

    def close(self) -> None:
        """End running calls and free the weights."""
        if self._closed:
            return
        for call in list(self._calls):
            call.abort(request.request_id for request in call.requests)
        if self._generating_thread != threading.get_ident():
            self.sleep()
        self._closed = True

    def _computes(self, call: _Call) -> bool:
        """Whether a call computes for those that run together; a call that can begin takes all waiting calls along."""
        if self._lock.acquire(blocking=False):
            self._generating_thread = call.thread
            waiting = [each for each in self._calls if each.thread == call.thread and each.left]
            self._joint = _Joint(waiting, self._steps)
        joint = self._joint  # another thread's may end meanwhile
        return joint is not None and joint.calls[:1] == [call]

    def _advance(self) -> None:
        """The next token of the calls that run together; after an error, the remaining calls start again."""
        joint = self._joint
        assert joint is not None
        try:
            next(joint.steps, None)
        except BaseException:
            joint.calls.clear()
            raise
        finally:
            self._release()

    def _release(self) -> None:
        """Let other calls run when those that ran together are complete."""
        joint = self._joint
        if joint is None or self._generating_thread != threading.get_ident():
            return
        joint.calls = [call for call in joint.calls if call.left and call in self._calls]
        if not joint.calls:
            joint.steps.close()  # it refers to itself by the calls: the cache would stay until a garbage collection
            self._joint = self._generating_thread = None
            self._lock.release()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Block until no call runs."""
        self.health()
        if self._generating_thread == threading.get_ident():
            raise RunError("the weights of the rollout backend hf cannot change while generate() runs: await it first")
        with self._lock:
            yield

    def _check(self, adapter: int) -> None:
        if adapter not in self._versions:
            raise RunError(
                f"the rollout backend hf has no adapter {adapter}: no update has sent it (rollout.adapters is "
                f"{self._adapters})"
            )

    @functools.cached_property
    def _decode(self) -> Decode:
        return load_tokenizer(self._source).decode

    def _steps(self, joint: _Joint) -> Generator[None, None, None]:
        self.health()
        if self._not_ready:
            raise RunError(f"the rollout backend hf cannot generate: {self._not_ready}")
        requests = [call.requests[number] for call, number in joint.numbered]
        for rows in plan_batches(requests, self._max_batch_size):
            batch = Batch(
                self._model,
                rows,
                max_prefill_tokens=self._max_prefill_tokens,
                aborted=joint.aborted,
                recorded=self._recorded,
                routers=self._routers,
                images=self._images,
                decode=self._decode if any(row.request.sampling.stop for row in rows) else None,
            )
            batch.bitwise = self._bitwise
            adapter = rows[0].request.adapter
            self._check(adapter)
            self._weights.use(adapter)
            going = True
            while going:
                going = batch.advance()
                for index, completion in batch.responses.take_finished(self._versions[adapter]).items():
                    call, number = joint.numbered[rows[index].number]
                    columns = {**completion.columns, **batch.columns(index, len(completion.token_ids))}
                    call.add(number, rows[index].sample, dataclasses.replace(completion, columns=columns))
                yield


def _in_order(samples: Mapping[int, Completion]) -> list[Completion]:
    return [samples[number] for number in sorted(samples)]
