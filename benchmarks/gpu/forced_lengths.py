"""A plugin for measurements: rollout backends ``forced_hf``, ``forced_vllm`` and ``forced_sglang``.

They are the backends of those names, except that every response has a length that was drawn beforehand: the requests
ignore stop tokens, and their maximum comes from a fixed log-normal distribution, by the request's seed
(``CORERL_LENGTHS=drawn``), or is what the config says. The last batch of requests is written to the file that
``CORERL_REQUESTS`` names, so that a bare engine can be given the same.
"""

import dataclasses
import importlib
import json
import math
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corerl import hookimpl
from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished, RolloutBackendFactory
from corerl.hookspecs import Register

MEDIAN, SIGMA = 200.0, 0.6
"""of the log-normal, in tokens; the largest is the config's data.max_response_length"""

BACKENDS = {
    "hf": ("corerl_hf", "HfBackend", "HfOptions"),
    "vllm": ("corerl_vllm", "VllmBackend", "VllmOptions"),
    "sglang": ("corerl_sglang", "SglangBackend", "SglangOptions"),
}
RECORDS = {"vllm": ("kept_tokens",), "sglang": ("kept_tokens",)}


def forced(request: GenerationRequest) -> GenerationRequest:
    """The request with a length of its own."""
    length = request.sampling.max_tokens
    if os.environ.get("CORERL_LENGTHS") == "drawn":
        drawn = random.Random(request.sampling.seed).lognormvariate(math.log(MEDIAN), SIGMA)
        length = min(max(1, round(drawn)), length)
    return dataclasses.replace(
        request, sampling=dataclasses.replace(request.sampling, max_tokens=length, ignore_eos=True)
    )


def with_forced_lengths(backend: Any) -> Any:
    """A subclass that draws lengths."""

    class Forced(backend):  # type: ignore[misc]
        async def generate(
            self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
        ) -> list[list[Completion]]:
            drawn = [forced(request) for request in requests]
            if path := os.environ.get("CORERL_REQUESTS"):
                plain = [{"prompt_ids": list(each.prompt_ids), **dataclasses.asdict(each.sampling)} for each in drawn]
                Path(path).write_text(json.dumps(plain))
            outputs: list[list[Completion]] = await super().generate(drawn, on_finished)
            return outputs

    return Forced


@hookimpl
def register_rollout_backends(register: Register[RolloutBackendFactory]) -> None:
    for name, (package, backend, options) in BACKENDS.items():
        try:
            classes = importlib.import_module(f"{package}.backend"), importlib.import_module(f"{package}.options")
        except ImportError:
            continue
        register(
            f"forced_{name}",
            with_forced_lengths(getattr(classes[0], backend)),
            options=getattr(classes[1], options),
            records=RECORDS.get(name, ()),
            starts_beside_models=name == "vllm",
            summary=f"{name} with response lengths drawn from a log-normal distribution",
        )
