"""Rollout backends: token ids in, sampled token ids and their log-probs out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from corerl.contracts.kinds import fact
from corerl.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor

    from corerl.contracts.config import ModelConfig, RolloutConfig


@dataclass(frozen=True)
class BackendFacts:
    """Facts of a rollout backend."""

    media: tuple[str, ...] = fact((), "accepts these columns of the data (`images`, `videos`); `request.media`")


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled.

    Attributes:
        max_tokens: at most this many tokens are generated, 1 or more.
        n: independent samples of the prompt.
        temperature: logits are divided by it; 0 is greedy.
        top_p: the smallest set of tokens whose probability reaches it is kept; 1 keeps all.
        top_k: the k most likely tokens are kept; -1 keeps all.
        stop_token_ids: generation ends after one of these; it is part of the response.
        ignore_eos: the stop tokens do not stop (for measurements).
        seed: the same seed, prompt and weights give the same tokens from one backend on one machine: sample i of a
            prompt depends neither on ``n`` nor on what else is generated.
    """

    max_tokens: int
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt. ``request_id`` names it for :meth:`RolloutBackend.abort`.

    Attributes:
        media: column of the prompt's row (``images``, ``videos``) -> what stands there, as it was read. A backend is
            only asked for columns that it is registered with (``media=("images",)``).
        session: requests of one session share a prefix, as the turns of an episode do: one engine should serve them,
            whose cache has it. The responses do not depend on the session; '': a request of its own.
    """

    request_id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    media: Mapping[str, Any] = field(default_factory=dict)
    session: str = ""

    def check_prompt(self, vocabulary: int) -> None:
        """Raise RunError for an empty prompt, and for a token outside a model's vocabulary of this size."""
        if not self.prompt_ids:
            raise RunError(f"request '{self.request_id}' has an empty prompt: at least one token is needed")
        if min(self.prompt_ids) < 0 or max(self.prompt_ids) >= vocabulary:
            raise RunError(
                f"request '{self.request_id}' has a prompt token outside the model's vocabulary of {vocabulary}: the "
                "tokenizer (model.tokenizer_path) must belong to the model"
            )


@dataclass(frozen=True)
class Completion:
    """One sampled response.

    Attributes:
        token_ids: the generated tokens, the stop token included.
        log_probs: log softmax(logits / temperature) of each token, over the whole vocabulary, before top-p and top-k
            (at temperature 0: of the logits themselves).
        finish_reason: ``stop`` (a stop token), ``length`` (max_tokens) or ``abort``.
        weight_version: the version given to the last ``update_weights`` before the first token.
    """

    token_ids: Sequence[int]
    log_probs: Sequence[float]
    finish_reason: Literal["stop", "length", "abort"]
    weight_version: int


OnFinished = Callable[[int, list[Completion]], None]
"""told a request's position and its completions"""


class RolloutBackend(Protocol):
    """An inference engine."""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        """Generate; the outer list follows ``requests``, each inner one holds ``sampling.n`` completions.

        Calls may overlap; a backend that batches by itself lets them share its batch.

        Args:
            on_finished: to be called once for each request, in the event loop's thread, when all of its completions
                are there: they are scored while others are generated. A backend that learns it only at the end may
                leave out this argument.
        """
        ...

    def update_weights(self, weights: "Iterable[tuple[str, Tensor]]", version: int, *, verify: bool = False) -> None:
        """Take over all weights, under their names in model files, and drop whatever was cached of the old ones.

        Requests may be running: they go on, and their further tokens come from the new weights; a backend that cannot
        change weights then waits until they are done.

        Args:
            weights: tensors on any device, each valid until the next is asked for.
            verify: compare a digest of every tensor as it was given with one as it arrived.

        Raises:
            RunError: a tensor is missing, unknown or of another shape, or arrived changed; it is named.
        """
        ...

    def sleep(self) -> None:
        """Give device memory back to training; no request is running."""
        ...

    def wake(self, *, kv_cache: bool = True) -> None:
        """Undo :meth:`sleep`; weights must be sent again before generating.

        Args:
            kv_cache: False takes memory for the weights alone; a second call, once they were sent, takes the rest.
        """
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests; their completions come back with what they have and ``finish_reason="abort"``."""
        ...

    def health(self) -> None:
        """Return if the engine answers, raise RunError if not."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class LoggingBackend(Protocol):
    """A rollout backend whose engine has a log."""

    def last_lines(self) -> str:
        """The end of the log, for the error of generation that takes too long."""
        ...


class RolloutBackendFactory(Protocol):
    """Starts an engine. ``device`` is ``cpu`` or ``cuda``."""

    def __call__(self, model: "ModelConfig", rollout: "RolloutConfig", *, device: str) -> RolloutBackend: ...
