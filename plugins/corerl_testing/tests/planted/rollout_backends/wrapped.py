"""The default rollout backend, for faults that change its inputs or outputs."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished
from corerl.plugins import load_plugins
from planted.fault import Fault

DEFAULT = RolloutConfig().name


class Backend:
    """The default backend as it is."""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, device: str) -> None:
        self.inner: Any = (
            load_plugins().registries.rollout_backends.select(DEFAULT).load()(model, rollout, device=device)
        )

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        def changed(position: int, completions: list[Completion]) -> list[Completion]:
            return [self.change(requests[position], completion) for completion in self.choose(completions)]

        def told(position: int, completions: list[Completion]) -> None:
            assert on_finished is not None
            on_finished(position, changed(position, completions))

        outputs = await self.inner.generate(self.ask(requests), None if on_finished is None else told)
        return [changed(position, completions) for position, completions in enumerate(outputs)]

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        self.inner.update_weights(weights, version, verify=verify)

    def sleep(self) -> None:
        self.inner.sleep()

    def wake(self, *, kv_cache: bool = True) -> None:
        self.inner.wake(kv_cache=kv_cache)

    def abort(self, request_ids: Sequence[str]) -> None:
        self.inner.abort(request_ids)

    def health(self) -> None:
        self.inner.health()

    def close(self) -> None:
        self.inner.close()

    def ask(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        """The requests as the default backend gets them."""
        return [sampled(each, **self.sampling(each)) for each in requests]

    def sampling(self, request: GenerationRequest) -> dict[str, Any]:
        """The changes of a request's sampling."""
        return {}

    def choose(self, completions: list[Completion]) -> list[Completion]:
        """A request's completions as they are handed out."""
        return completions

    def change(self, request: GenerationRequest, completion: Completion) -> Completion:
        """A completion as it is handed out."""
        return completion


def sampled(request: GenerationRequest, **changes: Any) -> GenerationRequest:
    """The request with another sampling."""
    return replace(request, sampling=replace(request.sampling, **changes))


def planted(wrong: Callable[..., Any], check: str, reason: str, *, patience: float = 1.0) -> Fault:
    """A fault of the default backend, named and described by its class."""
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in wrong.__name__).lstrip("_")
    flaw = (inspect.getdoc(wrong) or "").splitlines()[0]
    return Fault("rollout_backends", name, flaw, wrong, Backend, check, reason, requires=DEFAULT, patience=patience)
