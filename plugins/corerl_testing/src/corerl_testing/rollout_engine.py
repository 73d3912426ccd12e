"""A running rollout backend, and plain transformers for comparison."""

import asyncio
import atexit
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import (
    Completion,
    GenerationRequest,
    RolloutBackend,
    RolloutBackendFactory,
    SamplingParams,
    StartingBackend,
)
from corerl.registry import Selected
from corerl_testing import devices
from corerl_testing.deadline import within
from corerl_testing.results import CheckFailed
from corerl_testing.tiny_model import VOCABULARY, in_bf16, reference, response_log_probs, tiny_model

TOLERANCE = {"cpu": 1e-4, "cuda": 1e-2}
"""tolerance of a log-prob from a float32 engine"""

DEADLINE = 120.0
"""seconds for operations of an engine, including the compilation of the first kernels"""

PROMPTS = ([72, 101, 108, 108, 111], [257, 50], list(range(97, 123)), [72, 101, 108, 108, 33])

START_DEADLINE = 600.0
"""seconds for the start of an engine; the shipped backends have lower limits"""

T = TypeVar("T")


class Engine:
    """A running backend, its expected weights, and their log-probs of its completions.

    Args:
        folder: folder of the model; None: the tiny one.
    """

    def __init__(
        self, selected: Selected[RolloutBackendFactory], tolerance: float | None, folder: Path | None = None
    ) -> None:
        self._selected = selected
        self._tolerance = tolerance
        self._folder = folder or tiny_model()
        self._backend: RolloutBackend | None = None
        self._device = "cpu"
        self._expected: Any = None

    def checked(self, check: "Callable[[Engine], None]") -> None:
        """Run a check; after a failure the engine is stopped, because its state is unknown."""
        try:
            check(self)
        except BaseException:
            self.stop()
            raise

    @property
    def backend(self) -> RolloutBackend:
        return self._start() if self._backend is None else self._backend

    @property
    def expected(self) -> Any:
        """Float64 transformers model with the weights that the backend (started if necessary) should have."""
        _ = self.backend
        return self._expected

    def stop(self) -> None:
        """Close the backend, if it runs; the next check starts another."""
        backend, self._backend = self._backend, None
        atexit.unregister(self.stop)
        if backend is not None:
            with contextlib.suppress(Exception):
                within(DEADLINE, backend.close, "close()")

    def another(self, folder: Path) -> "Engine":
        """A second backend, with another model; the caller stops it."""
        return Engine(self._selected, self._tolerance, folder)

    def _start(self) -> RolloutBackend:
        model = ModelConfig(path=str(self._folder), dtype="fp32")
        factory = self._selected.load()

        def build() -> tuple[RolloutBackend, str]:
            return devices.build(lambda device: factory(model, RolloutConfig(), device=device))

        self._backend, self._device = within(START_DEADLINE, build, "starting")
        atexit.register(self.stop)
        if isinstance(self._backend, StartingBackend):
            within(START_DEADLINE, self._backend.started, "started()")
        self._expected = reference(self._folder)
        return self._backend

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self._device] if self._tolerance is None else self._tolerance

    def wait(self, work: Callable[[RolloutBackend], Coroutine[Any, Any, T]], what: str = "generate()") -> T:
        """The result of ``work``, run in an event loop of its own, as in the trainer."""
        backend = self.backend
        return within(DEADLINE, lambda: asyncio.run(work(backend)), what)

    def generate(self, *requests: GenerationRequest) -> list[list[Completion]]:
        prompts = [list(each.prompt_ids) for each in requests]
        outputs = self.wait(lambda backend: backend.generate(requests))
        for each, completions in zip(requests, outputs, strict=True):
            well_formed(each, completions)
        if [list(each.prompt_ids) for each in requests] != prompts:
            raise CheckFailed("generate() changed the prompt_ids of a request")
        return outputs

    def one(self, **sampling: Any) -> list[Completion]:
        """The completions of the first prompt."""
        return self.generate(request(**sampling))[0]

    @torch.no_grad()
    def log_probs(self, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0) -> Tensor:
        """(tokens, vocabulary) float64 log-probs from transformers."""
        return response_log_probs(self.expected, list(prompt), list(response), temperature)

    def agree(self, requests: Sequence[GenerationRequest], outputs: Sequence[Sequence[Completion]], of: str) -> None:
        """Fail unless all log-probs are those of the expected weights; ``of`` describes them in the message."""
        pairs = [
            (each, completion)
            for each, completions in zip(requests, outputs, strict=True)
            for completion in completions
            if completion.token_ids
        ]
        errors = [self.errors(*pair) for pair in pairs]
        largest = max((float(each.abs().max()) for each in errors), default=0.0)
        if not largest <= self.tolerance:
            rows = [
                (list(each.prompt_ids), list(completion.token_ids), each.sampling.temperature, error)
                for (each, completion), error in zip(pairs, errors, strict=True)
            ]
            raise CheckFailed(
                f"log-probs {of} are up to {largest:.2g} off log softmax(logits / temperature) over the whole "
                f"vocabulary, as a plain forward of transformers gives it (tolerance {self.tolerance:g})"
                f"{in_bf16(self.expected, rows[:20])}"
            )

    def errors(self, each: GenerationRequest, completion: Completion) -> Tensor:
        """(tokens,) float64 errors of a completion's log-probs."""
        tokens = list(completion.token_ids)
        true = self.log_probs(each.prompt_ids, tokens, each.sampling.temperature)
        given = torch.tensor(list(completion.log_probs), dtype=torch.float64)
        return given - true.gather(1, torch.tensor(tokens)[:, None])[:, 0]

    def require_version(self, each: GenerationRequest, completion: Completion, version: int) -> None:
        """Fail unless the tokens that carry a version have log-probs of the expected weights."""
        errors = self.errors(each, completion)
        for start, end, carried in completion.version_runs():
            wrong = (errors[start:end].abs() > self.tolerance).nonzero()
            if carried == version and len(wrong):
                token = start + int(wrong[0])
                raise CheckFailed(
                    f"token {token} of {len(errors)} carries version {version} (tokens {start} to {end - 1} do), and "
                    f"its log-prob is {float(errors[token]):+.2g} off that of these weights: "
                    "Completion.updates must name the first token of each version"
                )

    def require_greedy(self, each: GenerationRequest, completion: Completion) -> None:
        """Fail unless every token is the most likely one."""
        log_probs = self.log_probs(each.prompt_ids, completion.token_ids)
        chosen = log_probs.gather(1, torch.tensor(list(completion.token_ids))[:, None])[:, 0]
        if (log_probs.max(dim=1).values - chosen).max() > 2 * self.tolerance:
            raise CheckFailed("at temperature 0 a token was chosen that is not the most likely one")

    def require_same(self, given: Sequence[Completion], wanted: Sequence[Completion], what: str) -> None:
        """Fail unless samples of equal seeds, prompts and weights have equal tokens.

        For an engine that rounds more than float32 on a CPU, three in four must begin with the same four tokens: if two
        tokens are nearly equally likely to be drawn, rounding decides.
        """
        exact = self.tolerance <= TOLERANCE["cpu"]
        end = None if exact else 4
        same = [
            list(left.token_ids)[:end] == list(right.token_ids)[:end] for left, right in zip(given, wanted, strict=True)
        ]
        if sum(same) < (1.0 if exact else 0.75) * len(same):
            raise CheckFailed(
                f"{what} have the same seed, prompt and weights, and other tokens: {len(same) - sum(same)} of "
                f"{len(same)} samples differ, the first of them number {same.index(False)}"
            )

    def changed_weights(self, scale: float) -> list[tuple[str, Tensor]]:
        """Every distinct weight once, in float32, times ``scale``; norms and biases half as far from 1."""
        weights = reference(self._folder).float().named_parameters()
        return [(name, tensor.detach() * (scale if tensor.dim() > 1 else (1 + scale) / 2)) for name, tensor in weights]

    def update(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Send complete weights and expect them; each tensor is overwritten when the next is requested."""
        weights = list(weights)
        sent = {name: tensor.clone() for name, tensor in weights}
        backend = self.backend
        within(DEADLINE, lambda: backend.update_weights(_stream(sent), version, verify=True), "update_weights()")
        self.expect(weights)

    def expect(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Expect these weights in the backend from now on."""
        self.expected.load_state_dict({name: tensor.double() for name, tensor in weights}, strict=False)


def _stream(weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Tensors as from training: valid until the next is requested; every second one has non-contiguous columns."""
    for number, (name, tensor) in enumerate(weights.items()):
        view = tensor.t().contiguous().t() if number % 2 and tensor.dim() == 2 else tensor
        yield name, view
        view.zero_()


_ids = itertools.count()


def request(prompt: Sequence[int] = PROMPTS[0], max_tokens: int = 12, **sampling: Any) -> GenerationRequest:
    """A request with a new id."""
    return GenerationRequest(
        f"conformance-{next(_ids)}", list(prompt), SamplingParams(max_tokens=max_tokens, **sampling)
    )


def again(each: GenerationRequest) -> GenerationRequest:
    """The same request with another id."""
    return replace(each, request_id=f"conformance-{next(_ids)}")


def well_formed(each: GenerationRequest, completions: Sequence[Completion]) -> None:
    n, limit = each.sampling.n, each.sampling.max_tokens
    if len(completions) != n:
        raise CheckFailed(f"a request with n={n} gave {len(completions)} completions")
    for completion in completions:
        tokens = list(completion.token_ids)
        if len(completion.log_probs) != len(tokens):
            raise CheckFailed(f"{len(tokens)} tokens came with {len(completion.log_probs)} log-probs")
        if not all(isinstance(each, int) for each in tokens) or not all(
            isinstance(each, float) for each in completion.log_probs
        ):
            raise CheckFailed("token_ids must be Python's integers and log_probs its floats")
        if any(not 0 <= token < VOCABULARY for token in tokens):
            raise CheckFailed(f"the token ids {tokens} are not all in the vocabulary of {VOCABULARY}")
        if tokens[: len(each.prompt_ids)] == list(each.prompt_ids):
            raise CheckFailed("a response begins with the prompt: only generated tokens belong in it")
        if len(tokens) > limit:
            raise CheckFailed(f"a request with max_tokens={limit} gave {len(tokens)} tokens")
        if completion.finish_reason not in ("stop", "length", "abort"):
            raise CheckFailed(f"the finish reason '{completion.finish_reason}' is none of stop, length and abort")
