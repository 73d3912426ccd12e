"""Requests that run: their samples, the weights they began with, how they end."""

import asyncio
import contextlib
import hashlib
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

ABORT_AGAIN_SECONDS = 0.05


class Sample:
    """One sample of one request.

    ``aborted`` counts from the first moment on, while vLLM knows a request only after a while. ``weight_version`` is
    raised by an update until the first token is there.
    """

    def __init__(self, engine: Any, request_id: str, engine_id: str, weight_version: int) -> None:
        self._engine = engine
        self.request_id = request_id
        self.engine_id = engine_id
        self.weight_version = weight_version
        self.aborted = False
        self.done = False
        self.token_ids: list[int] = []
        self.log_probs: list[float] = []
        self.finish_reason = "abort"

    async def run(self, prompt_ids: list[int], sampling: SamplingParams) -> None:
        """Generate until it ends."""
        try:
            prompt = {"prompt_token_ids": prompt_ids}
            async for output in self._engine.generate(prompt, sampling, self.engine_id):
                self._take(output.outputs[0])
        finally:
            self.done = True

    def _take(self, output: Any) -> None:
        log_probs = output.logprobs
        chosen = [] if log_probs is None else [log_probs.logprobs[start] for start in log_probs.start_indices]
        self.token_ids = list(output.token_ids)[: len(chosen)]
        self.log_probs = chosen[: len(self.token_ids)]
        self.finish_reason = output.finish_reason or "abort"

    async def abort(self) -> None:
        """Ask until it has ended: vLLM ignores the ids of requests that it has not taken in yet."""
        self.aborted = True
        while not self.done:
            await self._engine.abort(self.engine_id)
            await asyncio.sleep(ABORT_AGAIN_SECONDS)


def has_begun(engine: Any) -> set[str]:
    """The ids of requests with a first token."""
    states = engine.output_processor.request_states.values()
    return {state.external_req_id for state in states if not state.is_prefilling}


def sampling_params(asked: dict[str, Any], sample: int) -> SamplingParams:
    """What vLLM is told; only ``stop_token_ids`` stop, and each sample has a seed of its own."""
    digest = hashlib.sha256(f"{asked['seed']}/{sample}".encode()).digest()
    return SamplingParams(
        max_tokens=asked["max_tokens"],
        temperature=asked["temperature"],
        top_p=asked["top_p"],
        top_k=asked["top_k"],
        stop_token_ids=[] if asked["ignore_eos"] else asked["stop_token_ids"],
        ignore_eos=True,
        seed=int.from_bytes(digest[:7], "big"),
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


async def finish(tasks: list["asyncio.Task[None]"]) -> None:
    """Wait for all; the first exception ends the others."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(BaseException):
                await task
