"""Rollout backends: token ids in, sampled token ids and their log-probs out."""

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from corerl.contracts.token_columns import TokenValues, cut_columns
from corerl.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor

    from corerl.contracts.config import ModelConfig, RolloutConfig


class Decode(Protocol):
    """:meth:`corerl.contracts.tokenizers.ChatTokenizer.decode`."""

    def __call__(self, token_ids: Sequence[Sequence[int]], *, skip_special_tokens: bool = True) -> list[str]: ...


@dataclass(frozen=True)
class SamplingParams:
    """Sampling of one request.

    Attributes:
        max_tokens: largest number of generated tokens, 1 or more.
        n: independent samples of the prompt.
        temperature: divisor of the logits; 0 is greedy.
        top_p: the smallest set of tokens with this probability is kept; 1 keeps all.
        top_k: number of most likely tokens to keep; -1 keeps all.
        min_p: tokens of at least this share of the largest probability are kept; 0 keeps all.
        stop_token_ids: generation ends after one of these, which is part of the response.
        stop: texts that end a sample. A backend ends it with the token that completes the first of them, or a few
            tokens later; :meth:`Completion.until` cuts these.
        ignore_eos: stop tokens do not stop (for measurements).
        seed: the same seed, prompt and weights give the same tokens on one machine. Sample i of a prompt depends
            neither on ``n`` nor on other requests.
    """

    max_tokens: int
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    seed: int = 0


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt. ``request_id`` is its name for :meth:`RolloutBackend.abort`.

    Attributes:
        media: column of the row (``images``, ``videos``) -> content, as read; or, by a tokenizer that processes media
            (:class:`corerl.contracts.tokenizers.MediaTokenizer`), TokenValues of the prompt's tokens. A backend gets
            the columns of its registration alone (``media=("images",)``).
        session: requests of one session share a prefix, as the turns of an episode do: one engine, whose cache has the
            prefix, should serve them. Responses do not depend on the session; '': none.
        adapter: number of the adapter that samples, below ``rollout.adapters``.
    """

    request_id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    media: Mapping[str, Any] = field(default_factory=dict)
    session: str = ""
    adapter: int = 0

    def with_media(self, completions: "list[Completion]") -> "list[Completion]":
        """Completions with the request's columns of tokens, which training reads too."""
        columns = {name: value for name, value in self.media.items() if isinstance(value, TokenValues)}
        if not columns:
            return completions
        return [
            replace(
                each,
                columns={
                    **each.columns,
                    **{name: column.widened(len(each.token_ids)) for name, column in columns.items()},
                },
            )
            for each in completions
        ]

    def check_prompt(self, vocabulary: int) -> None:
        """Raise RunError for an empty prompt or a token outside a vocabulary of this size."""
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
        token_ids: the generated tokens with the stop token.
        log_probs: log softmax(logits / temperature) of each token (at temperature 0: of the logits themselves). They
            are over the whole vocabulary, before top-p, top-k and min-p; over the kept set if ``kept_tokens`` is
            recorded.
        finish_reason: ``stop`` (a stop token), ``length`` (max_tokens) or ``abort``.
        weight_version: the version of the weights that sampled the first token: that of the last ``update_weights``.
        updates: (position, version), in ascending order, of each update during the response: tokens from this position
            on were sampled with this version.
        columns: name -> values of the last tokens of prompt and response together, by ``rollout.record``. Of a sampled
            token, ``kept_tokens`` (int32) are the tokens that top-p, top-k and min-p kept, itself included; without
            truncation none, which stands for the whole vocabulary. ``top_log_probs`` records two columns: the most
            likely tokens ``top_tokens`` (int32), in descending order, and their ``top_log_probs`` (float32).
    """

    token_ids: Sequence[int]
    log_probs: Sequence[float]
    finish_reason: Literal["stop", "length", "abort"]
    weight_version: int
    updates: tuple[tuple[int, int], ...] = ()
    columns: Mapping[str, TokenValues] = field(default_factory=dict)

    def version_runs(self) -> list[tuple[int, int, int]]:
        """(start, end, version) of each run of tokens that one version of the weights sampled; no run is empty.

        >>> Completion([7, 8, 9], [-1.0, -1.0, -1.0], "stop", 4, ((2, 5),)).version_runs()
        [(0, 2, 4), (2, 3, 5)]
        """
        if not self.updates and self.token_ids:  # thousands of completions a step
            return [(0, len(self.token_ids), self.weight_version)]
        begins = [(0, self.weight_version), *self.updates]
        ends = [*(start for start, _ in self.updates), len(self.token_ids)]
        runs = [(start, end, version) for (start, version), end in zip(begins, ends, strict=True)]
        return [run for run in runs if run[0] < run[1]]

    def until(self, stop: Sequence[str], decode: Decode) -> "Completion":
        """The response up to the token that completes the first of ``stop``."""
        end = stop_place(self.token_ids, stop, decode)
        if end is None:
            return self
        return replace(
            self,
            token_ids=self.token_ids[:end],
            log_probs=self.log_probs[:end],
            finish_reason="stop",
            updates=tuple(update for update in self.updates if update[0] < end),
            columns=cut_columns(self.columns, len(self.token_ids) - end),
        )


def stop_place(token_ids: Sequence[int], stop: Sequence[str], decode: Decode) -> int | None:
    """The number of tokens up to the one that completes the first of ``stop``; None if none is there.

    Special tokens may be part of such a text, or stand in the middle of one.
    """

    def has_stopped(count: int) -> bool:
        rows = [list(token_ids[:count])]
        texts = [text for skip in (True, False) for text in decode(rows, skip_special_tokens=skip)]
        return any(part in text for part in stop for text in texts)

    if not stop or not has_stopped(len(token_ids)):
        return None
    return 1 + bisect.bisect_left(range(1, len(token_ids)), True, key=has_stopped)


OnFinished = Callable[[int, list[Completion]], None]
"""called with a request's position and its completions"""


class RolloutBackend(Protocol):
    """An inference engine."""

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        """Generate; the outer list follows ``requests``, each inner list has ``sampling.n`` completions.

        Calls may overlap; a backend with its own batching shares the batch among them.

        Args:
            on_finished: to be called once for each request, in the event loop's thread, when its completions are there:
                scoring then overlaps generation. A backend without this knowledge may leave out the argument.
        """
        ...

    def update_weights(self, weights: "Iterable[tuple[str, Tensor]]", version: int, *, verify: bool = False) -> None:
        """Load every weight by its name in model files, and drop all caches of the old weights.

        An engine that gets adapters holds ``rollout.adapters`` of them: an update replaces the one with the number
        ``version % rollout.adapters``. Running requests continue with the new weights; a backend that cannot change
        them meanwhile waits for their end.

        Args:
            weights: tensors on any device, each valid until the next is taken.
            verify: compare a digest of every tensor at both ends.

        Raises:
            RunError: names a missing, unknown, misshapen or changed tensor.
        """
        ...

    def sleep(self) -> None:
        """Give device memory to training; no request is running."""
        ...

    def wake(self, *, kv_cache: bool = True) -> None:
        """Undo :meth:`sleep`; weights must be sent again before generation.

        Args:
            kv_cache: False takes memory for the weights alone; a second call after them takes the rest.
        """
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests: their partial completions have ``finish_reason="abort"``."""
        ...

    def health(self) -> None:
        """Return if the engine answers; otherwise raise RunError."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class StartingBackend(Protocol):
    """A rollout backend whose engine, in a process of its own, still starts when the constructor has returned."""

    def is_starting(self) -> bool:
        """Whether the engine still starts; False once it can generate, and once it has failed."""
        ...

    def started(self) -> None:
        """Wait until the engine can generate.

        Raises:
            DeadlineError: the start took too long.
            RunError: the engine is missing, or did not start.
        """
        ...


@runtime_checkable
class LoggingBackend(Protocol):
    """A rollout backend whose engine has a log."""

    def last_lines(self) -> str:
        """End of the log, for the error of late generation."""
        ...


@runtime_checkable
class BoundedBackend(Protocol):
    """A rollout backend whose engine has a largest length of sequences."""

    def longest_sequence(self) -> int | None:
        """Largest number of tokens of prompt and response together, of an engine that has started; None: unknown."""
        ...


@dataclass(frozen=True)
class EngineLoad:
    """A report of an engine about its samples.

    Attributes:
        room: largest number of samples that the engine computes at a time; 0: unknown.
        running: samples that it computes.
        waiting: samples that it has not begun, or whose cache was taken by others.
        preempted: number of times so far that a sample's cache was taken by others; the sample is computed again.
        cache_usage: share of the KV cache in use, 0 to 1.
    """

    room: int = 0
    running: int = 0
    waiting: int = 0
    preempted: int = 0
    cache_usage: float = 0.0

    @classmethod
    def join(cls, loads: "Iterable[EngineLoad | None]") -> "EngineLoad | None":
        """The load of several engines together: sums, and the largest ``cache_usage``; None if no engine reports."""
        known = [load for load in loads if load is not None]
        if not known:
            return None
        return cls(
            sum(load.room for load in known),
            sum(load.running for load in known),
            sum(load.waiting for load in known),
            sum(load.preempted for load in known),
            max(load.cache_usage for load in known),
        )


@runtime_checkable
class LoadReporting(Protocol):
    """A rollout backend, or a group of rollout workers, whose engines report their load."""

    def engine_load(self) -> EngineLoad | None:
        """The last report, at once; None: there is none. The number of requests under way follows it."""
        ...


class RolloutBackendFactory(Protocol):
    """Starts an engine. ``device`` is ``cpu`` or ``cuda``."""

    def __call__(self, model: "ModelConfig", rollout: "RolloutConfig", *, device: str) -> RolloutBackend: ...
