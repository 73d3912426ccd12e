"""A rollout backend that runs, and plain transformers beside it."""

import asyncio
import atexit
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from corerl.config.schema import ModelConfig, RolloutConfig
from corerl.registry.base import Selected
from corerl.registry.rollout_backends import (
    Completion,
    GenerationRequest,
    RolloutBackend,
    RolloutBackendFactory,
    SamplingParams,
)
from corerl.testing import devices
from corerl.testing.deadline import within
from corerl.testing.results import CheckFailed
from corerl.testing.tiny_model import VOCABULARY, reference, response_log_probs, tiny_model

TOLERANCE = {"cpu": 1e-4, "cuda": 1e-2}
"""of a log-prob that a float32 engine computes"""

DEADLINE = 120.0
"""seconds for what an engine does at its own pace, the first kernels compiled"""

PROMPTS = ([72, 101, 108, 108, 111], [257, 50], list(range(97, 123)), [72, 101, 108, 108, 33])

T = TypeVar("T")


class Engine:
    """A running backend, the weights it should have, and what they say about its completions."""

    def __init__(self, selected: Selected[RolloutBackendFactory], tolerance: float | None) -> None:
        self._selected = selected
        self._tolerance = tolerance
        self._backend: RolloutBackend | None = None
        self._device = "cpu"
        self.expected: Any = None
        """float64 transformers model with the weights that the backend should have"""

    def checked(self, check: "Callable[[Engine], None]") -> None:
        """Run a check; what it leaves behind when it does not hold is nothing to go on with."""
        try:
            check(self)
        except BaseException:
            self.stop()
            raise

    @property
    def backend(self) -> RolloutBackend:
        if self._backend is None:
            self._backend = self._start()
            self.expected = reference(tiny_model())
            atexit.register(self.stop)
        return self._backend

    def stop(self) -> None:
        """Close the backend, if it runs; the next check starts another."""
        backend, self._backend = self._backend, None
        atexit.unregister(self.stop)
        if backend is not None:
            with contextlib.suppress(Exception):
                within(DEADLINE, backend.close, "close()")

    def _start(self) -> RolloutBackend:
        model = ModelConfig(path=str(tiny_model()), dtype="fp32")
        factory = self._selected.load()
        backend, self._device = devices.build(lambda device: factory(model, RolloutConfig(), device=device))
        return backend

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self._device] if self._tolerance is None else self._tolerance

    def wait(self, work: Callable[[RolloutBackend], Coroutine[Any, Any, T]], what: str = "generate()") -> T:
        """What ``work`` returns, run in an event loop of its own as the trainer does it."""
        backend = self.backend
        return within(DEADLINE, lambda: asyncio.run(work(backend)), what)

    def generate(self, *requests: GenerationRequest) -> list[list[Completion]]:
        outputs = self.wait(lambda backend: backend.generate(requests))
        for each, completions in zip(requests, outputs, strict=True):
            well_formed(each, completions)
        return outputs

    def one(self, **sampling: Any) -> list[Completion]:
        """The completions of the first prompt."""
        return self.generate(request(**sampling))[0]

    @torch.no_grad()
    def log_probs(self, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0) -> Tensor:
        """(tokens, vocabulary) float64, what transformers says."""
        return response_log_probs(self.expected, list(prompt), list(response), temperature)

    def agree(self, requests: Sequence[GenerationRequest], outputs: Sequence[Sequence[Completion]], of: str) -> None:
        """Fail unless all log-probs are those of the expected weights; ``of`` says whose, for the message."""
        largest = max(
            self.difference(each, completion)
            for each, completions in zip(requests, outputs, strict=True)
            for completion in completions
        )
        if largest > self.tolerance:
            raise CheckFailed(
                f"log-probs {of} are up to {largest:.2g} off log softmax(logits / temperature) over the whole "
                f"vocabulary, as a plain forward of transformers gives it (tolerance {self.tolerance:g})"
            )

    def difference(self, each: GenerationRequest, completion: Completion) -> float:
        """The largest error of a completion's log-probs."""
        tokens = list(completion.token_ids)
        if not tokens:
            return 0.0
        true = self.log_probs(each.prompt_ids, tokens, each.sampling.temperature)
        given = torch.tensor(list(completion.log_probs), dtype=torch.float64)
        return float((true.gather(1, torch.tensor(tokens)[:, None])[:, 0] - given).abs().max())

    def changed_weights(self, scale: float) -> list[tuple[str, Tensor]]:
        """Every distinct weight once, in float32, matrices changed by ``scale``."""
        weights = reference(tiny_model()).float().named_parameters()
        return [(name, tensor.detach() * (scale if tensor.dim() > 1 else 1.0)) for name, tensor in weights]

    def update(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Send complete weights and expect them."""
        sent = {name: tensor.clone() for name, tensor in weights}
        backend = self.backend
        self.expected.load_state_dict({name: tensor.double() for name, tensor in sent.items()}, strict=False)
        within(DEADLINE, lambda: backend.update_weights(iter(sent.items()), version, verify=True), "update_weights()")
        for tensor in sent.values():  # as training does with them
            tensor.zero_()


_ids = itertools.count()


def request(prompt: Sequence[int] = PROMPTS[0], max_tokens: int = 12, **sampling: Any) -> GenerationRequest:
    """A request with an id of its own."""
    return GenerationRequest(f"conformance-{next(_ids)}", prompt, SamplingParams(max_tokens=max_tokens, **sampling))


def well_formed(each: GenerationRequest, completions: Sequence[Completion]) -> None:
    n, limit = each.sampling.n, each.sampling.max_tokens
    if len(completions) != n:
        raise CheckFailed(f"a request with n={n} gave {len(completions)} completions")
    for completion in completions:
        tokens = list(completion.token_ids)
        if len(completion.log_probs) != len(tokens):
            raise CheckFailed(f"{len(tokens)} tokens came with {len(completion.log_probs)} log-probs")
        if any(not 0 <= token < VOCABULARY for token in tokens):
            raise CheckFailed(f"the token ids {tokens} are not all in the vocabulary of {VOCABULARY}")
        if tokens[: len(each.prompt_ids)] == list(each.prompt_ids):
            raise CheckFailed("a response begins with the prompt: only generated tokens belong in it")
        if len(tokens) > limit:
            raise CheckFailed(f"a request with max_tokens={limit} gave {len(tokens)} tokens")
        if completion.finish_reason not in ("stop", "length", "abort"):
            raise CheckFailed(f"the finish reason '{completion.finish_reason}' is none of stop, length and abort")
