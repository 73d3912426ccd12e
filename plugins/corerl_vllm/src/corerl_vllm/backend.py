"""Rollout backend ``vllm``: the half in the trainer's process. It imports no vLLM."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from corerl.config.schema import ModelConfig, RolloutConfig
from corerl.errors import ConfigError, RunError
from corerl.models import compute_dtype
from corerl.registry.rollout_backends import Completion, GenerationRequest
from corerl_vllm.options import VllmOptions
from corerl_vllm.process import Answer, EngineProcess, checked
from corerl_vllm.weights import ExpectedWeights, SharedBucket, buckets
from corerl_vllm_engine import frames

TESTED = ((0, 26), (0, 33))
"""versions from the first up to, but without, the second"""

OURS = ("model", "dtype", "worker_extension_cls", "skip_tokenizer_init", "logprobs_mode")
"""engine arguments that are not the user's to set"""

CPU_VARIABLES = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


class VllmBackend:
    """See :class:`corerl.registry.rollout_backends.RolloutBackend`.

    Calls share the engine's batch. An update while requests run pauses them; their further tokens come from the new
    weights. The weights loaded from ``model.path`` have version 0.
    """

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, device: str, options: VllmOptions) -> None:
        """Start the engine.

        Raises:
            ConfigError: no such interpreter, an engine argument that is set elsewhere.
            RunError: vLLM is not there or of an untested version, or the engine did not come up.
        """
        self._options = options
        self._dtype = compute_dtype(model, device)
        self._level = options.sleep_level if device == "cuda" else 0
        arguments = engine_arguments(model, options, device)
        self._expected = ExpectedWeights(model)
        self._process = EngineProcess(
            options.python, engine_environment(model, options, device), {"engine_args": arguments}
        )
        self._shared = (SharedBucket(), SharedBucket())
        try:
            seconds = options.start_timeout
            self._check_version(self._process.wait_for("vllm", seconds, "importing vLLM")["version"])
            ready = self._process.wait_for("ready", seconds, "the start of the vLLM engine (start_timeout)")
        except BaseException:
            self._process.close()
            raise
        self._vocabulary = int(ready["vocabulary"])

    @property
    def pid(self) -> int:
        """Of the engine's process, which leads a group of its own."""
        return self._process.pid

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Generate; a call that is cancelled ends its requests.

        Raises:
            RunError: the engine is dead or closed, its weights are not there, or a prompt is no such model's.
        """
        for request in requests:
            self._check(request)
        number, future = self._process.submit("generate", requests=[_described(request) for request in requests])
        try:
            answer = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._process.submit("cancel", call=number)
            raise
        return _completions(requests, answer)

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        """Send all weights, the next bucket while the engine loads the one before.

        Raises:
            RunError: a tensor is missing, unknown or of another shape, or arrived changed: nothing is generated before
                a complete update, and calls that run end.
            DeadlineError: the engine did not answer within ``timeout`` seconds.
        """
        try:
            self._process.ask("begin_update", self._options.timeout)
            self._send(weights, verify)
        except BaseException:
            with contextlib.suppress(RunError):  # a dead engine need not be told
                self._process.ask("end_update", self._options.timeout, version=None)
            raise
        missing = self._process.ask("end_update", self._options.timeout, version=version)["missing"]
        if missing:
            raise RunError(
                f"the engine's weight '{missing[0]}' was in no tensor of the update (of {len(missing)} such)"
            )

    def sleep(self) -> None:
        """Give the device's memory back. vLLM has no such thing on the CPU: there, memory stays taken."""
        self._process.ask("sleep", self._options.timeout, level=self._level)

    def wake(self, *, kv_cache: bool = True) -> None:
        """Take the memory again; weights must be sent before generating."""
        self._process.ask("wake", self._options.timeout, level=self._level)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests; ids that are not known (any more) are ignored."""
        self._process.ask("abort", self._options.timeout, request_ids=list(request_ids))

    def health(self) -> None:
        """
        Raises:
            RunError: the engine is dead or closed.
        """
        self._process.ask("health", self._options.timeout)

    def close(self) -> None:
        """End the engine with all its processes."""
        self._process.close()
        for shared in self._shared:
            shared.close()

    def _send(self, weights: Iterable[tuple[str, Tensor]], verify: bool) -> None:
        size = self._options.bucket_mb * 2**20
        loading: list[Any] = [None, None]
        for number, bucket in enumerate(buckets(self._expected.checked(weights), self._dtype, size)):
            turn = number % 2
            if loading[turn] is not None:
                self._process.answer(loading[turn], "loading weights", self._options.timeout)
            tensors = self._shared[turn].write(bucket, self._dtype, verify=verify)
            loading[turn] = self._process.submit("load", path=self._shared[turn].path, tensors=tensors)[1]
        for future in filter(None, loading):
            self._process.answer(future, "loading weights", self._options.timeout)

    def _check(self, request: GenerationRequest) -> None:
        if not request.prompt_ids:
            raise RunError(f"request '{request.request_id}' has an empty prompt: at least one token is needed")
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= self._vocabulary:
            raise RunError(
                f"request '{request.request_id}' has a prompt token outside the model's vocabulary of "
                f"{self._vocabulary}: the tokenizer (model.tokenizer_path) must belong to the model"
            )

    def _check_version(self, version: str) -> None:
        found = re.match(r"(\d+)\.(\d+)", version)
        if found and TESTED[0] <= (int(found[1]), int(found[2])) < TESTED[1]:
            return
        first, last = (".".join(map(str, each)) for each in TESTED)
        message = f"vLLM {version} is outside of the tested range (>={first},<{last})"
        if self._options.untested_version == "error":
            raise RunError(f"{message}: install another, or set rollout.options.untested_version to warn")
        print(f"warning: {message}", file=sys.stderr)


def engine_arguments(model: ModelConfig, options: VllmOptions, device: str) -> dict[str, Any]:
    """Arguments of vLLM's AsyncEngineArgs.

    Raises:
        ConfigError: ``engine_args`` sets what has a key of its own.
    """
    folder = Path(model.path).expanduser()
    dummy = "dummy" in (model.load_format, options.load_format)
    arguments: dict[str, Any] = {
        "model": str(folder.absolute()) if folder.is_dir() else model.path,
        "dtype": str(compute_dtype(model, device)).removeprefix("torch."),
        "trust_remote_code": model.trust_remote_code,
        "load_format": "dummy" if dummy else "auto",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "worker_extension_cls": "corerl_vllm_engine.worker.Worker",
        "logprobs_mode": "processed_logprobs",
        "tensor_parallel_size": options.tensor_parallel_size,
        "enforce_eager": device == "cpu" if options.enforce_eager is None else options.enforce_eager,
        "disable_log_stats": True,
    }
    if options.max_model_len is not None:
        arguments["max_model_len"] = options.max_model_len
    if device == "cuda":
        arguments |= {"gpu_memory_utilization": options.gpu_memory_utilization, "enable_sleep_mode": True}
    for name in options.engine_args:
        if name in OURS or hasattr(options, name):
            where = f"rollout.options.{name}" if hasattr(options, name) else "the backend"
            raise ConfigError(f"rollout.options.engine_args.{name}", f"is set by {where} already: remove it here")
    return arguments | options.engine_args


def engine_environment(model: ModelConfig, options: VllmOptions, device: str) -> Mapping[str, str]:
    """Variables for the engine's process; what the user has set, in the options or outside, stays."""
    defaults = {"VLLM_NO_USAGE_STATS": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    if Path(model.path).expanduser().is_dir():
        defaults["HF_HUB_OFFLINE"] = "1"
    if device == "cpu":
        defaults |= CPU_VARIABLES | {"VLLM_CPU_KVCACHE_SPACE": str(options.cpu_kv_cache_gb)}
    return {name: value for name, value in defaults.items() if name not in os.environ} | dict(options.environment)


def _described(request: GenerationRequest) -> dict[str, Any]:
    sampling = request.sampling
    return {
        "request_id": request.request_id,
        "prompt_ids": list(request.prompt_ids),
        "n": sampling.n,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "seed": sampling.seed,
    }


def _completions(requests: Sequence[GenerationRequest], answer: Answer) -> list[list[Completion]]:
    header, payload = answer
    token_ids, log_probs = frames.unpack_numbers(payload)
    completions, start = [], 0
    for length, finish_reason, version in checked(header)["samples"]:
        end = start + length
        completions.append(Completion(token_ids[start:end], log_probs[start:end], finish_reason, version))
        start = end
    remaining = iter(completions)
    return [[next(remaining) for _ in range(request.sampling.n)] for request in requests]
