"""vLLM's asynchronous engine with the interface of ``corerl_engine.server``."""

import asyncio
from collections.abc import Awaitable, Sequence
from multiprocessing import connection
from typing import Any

import numpy as np
from corerl_engine.experts import ExpertsOf
from corerl_engine.recording import Recording
from vllm import AsyncEngineArgs, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from corerl_vllm_engine import cores
from corerl_vllm_engine.adapter import named
from corerl_vllm_engine.graphs import missing_sizes
from corerl_vllm_engine.replicas import Replicas
from corerl_vllm_engine.scheduler import PART, PREEMPTED


async def start(settings: dict[str, Any]) -> "VllmEngine | Replicas":
    """Start the engine; returns when it can generate. Replicas start at the same time."""
    if settings.get("preloaded"):
        cores.fork_from_server()
    settings = _with_images(settings)
    configs = [_config(settings) for _ in range(settings["replicas"])]
    if len(configs) == 1:
        return await _prepared(_engine(configs[0]), settings)
    engines = await asyncio.gather(*(asyncio.to_thread(_engine, config) for config in configs))
    return Replicas([await _prepared(engine, settings) for engine in engines])


BATCH_OF_A_STEP = UsageContext.LLM_CLASS
"""sets the default number of concurrent requests, otherwise 128"""


def _config(settings: dict[str, Any]) -> Any:
    """Made in one thread: vLLM's config in use is global while another is made."""
    arguments, follows = settings["engine_args"], False
    if nodes := settings.get("nodes"):
        follows = nodes["rank"] > 0
        arguments = arguments | {"nnodes": nodes["count"], "node_rank": nodes["rank"]}
        arguments |= {"master_addr": nodes["address"], "master_port": nodes["port"]}
        arguments["distributed_executor_backend"] = "mp"

    def made(more: dict[str, Any]) -> Any:
        return AsyncEngineArgs(**arguments, **more).create_engine_config(BATCH_OF_A_STEP, headless=follows)

    config = made({})
    missing = missing_sizes(config, arguments)
    return made(missing) if missing else config


def follow(settings: dict[str, Any]) -> None:
    """Do the share of another node than the first, as ``vllm serve --headless`` does.

    Raises:
        RuntimeError: a worker has ended.
    """
    executor = MultiprocExecutor(_config(_with_images(settings)), monitor_workers=False)
    ended = connection.wait([worker.proc.sentinel for worker in executor.workers])
    workers = [worker.proc for worker in executor.workers if worker.proc.sentinel in ended]
    workers[0].join()
    raise RuntimeError(f"{workers[0].name} (process {workers[0].pid}) ended with exit code {workers[0].exitcode}")


def _with_images(settings: dict[str, Any]) -> dict[str, Any]:
    if not settings.get("reads_images"):
        return settings
    from corerl_vllm_engine import images

    return settings | {"engine_args": images.engine_arguments() | settings["engine_args"]}


def _engine(config: Any) -> Any:
    """Start vLLM's processes, and wait for them."""
    return AsyncLLM.from_vllm_config(config, usage_context=BATCH_OF_A_STEP, disable_log_stats=True)


async def _prepared(engine: Any, settings: dict[str, Any]) -> "VllmEngine":
    recording = Recording(settings["record"], settings["top_log_probs"])
    adapter = settings.get("adapter")
    arguments = recording.keeps, settings["bitwise"], adapter
    devices: list[list[str]] = await workers_of(engine, "corerl_prepare", *arguments)
    devices = devices[: engine.vllm_config.parallel_config.local_world_size]  # of this node: the first ranks
    experts = ExpertsOf(settings["experts"]) if settings.get("experts") else None
    made = VllmEngine(engine, settings["sleep_level"], devices, recording, experts)
    made.reads_images = settings.get("reads_images", False)
    made.adapters = [named(number) for number in range(adapter["count"])] if adapter else []
    return made


class VllmEngine:
    """See ``corerl_engine.server.Engine``."""

    dead = EngineDeadError
    adapters: Sequence[Any] = ()
    """those that samples name by their numbers; without any, updates are all weights"""
    reads_images = False
    keeps_layouts = True

    def __init__(
        self,
        engine: Any,
        sleep_level: int,
        devices: list[list[str]],
        recording: Recording,
        experts: ExpertsOf | None = None,
    ) -> None:
        self._engine, self._recording, self._experts = engine, recording, experts
        self._level = sleep_level
        self.vocabulary: int = engine.model_config.get_vocab_size()
        self.context: int = engine.model_config.max_model_len
        self.devices = sorted(set[str].intersection(*map(set, devices)))
        self.parts = [self]
        self.room: int = engine.vllm_config.scheduler_config.max_num_seqs
        self._outputs = 0
        parts = range(engine.vllm_config.parallel_config.data_parallel_size)
        self._loads: dict[int, dict[str, float]] = {part: {"room": self.room} for part in parts}
        """of the schedulers of data parallel ranks"""
        self._count_outputs(engine.output_processor)
        self._take_stats(engine.output_processor)

    def progress(self) -> int:
        return self._outputs

    def _count_outputs(self, processor: Any) -> None:
        """Record the time of each output of the engine's core."""
        process = processor.process_outputs

        def counted(*arguments: Any, **more: Any) -> Any:
            self._outputs += 1
            return process(*arguments, **more)

        processor.process_outputs = counted

    def _take_stats(self, processor: Any) -> None:
        """Keep the load of the scheduler's statistics, which come with outputs."""
        update = processor.update_scheduler_stats

        def taken(stats: Any) -> Any:
            if stats is not None:
                self._loads[part_of(stats)] = load_of(stats, self.room)
            return update(stats)

        processor.update_scheduler_stats = taken

    async def report(self) -> dict[str, float]:
        loads = self._loads.values()
        names = set[str]().union(*loads)
        whole = {name: sum(load.get(name, 0) for load in loads) for name in names}
        return whole | {name: max(load.get(name, 0) for load in loads) for name in names & {"cache_usage"}}

    async def generate(self, sample: Any) -> None:
        prompt = _prompt(sample.asked)
        likely = self._recording.reported(sample.asked, self.vocabulary)
        params = sampling_params(sample, likely)
        adapter = self.adapters[sample.asked["adapter"]] if self.adapters else None
        async for output in self._engine.generate(prompt, params, sample.engine_id, lora_request=adapter):
            completion = output.outputs[0]
            log_probs = completion.logprobs
            chosen = [] if log_probs is None else [log_probs.logprobs[start] for start in log_probs.start_indices]
            sample.token_ids = list(completion.token_ids)[: len(chosen)]
            sample.log_probs = chosen[: len(sample.token_ids)]
            sample.finish_reason = completion.finish_reason or "abort"
            if likely and log_probs is not None:
                of_tokens = slice(len(sample.token_ids)), slice(1, None)  # the sampled token comes first
                token_ids = np.array(log_probs.token_ids).reshape(-1, 1 + likely)[of_tokens]
                values = np.array(log_probs.logprobs).reshape(-1, 1 + likely)[of_tokens]
                sample.columns |= self._recording.columns(sample.asked, token_ids, values)
            self._record(sample, getattr(completion, "routed_experts", None))

    def _record(self, sample: Any, routed: Any) -> None:
        """The experts of the tokens that were read; an aborted request may lack those of its last tokens."""
        if self._experts is not None and routed is not None:
            tokens = len(sample.asked["prompt_ids"]) + len(sample.token_ids)
            sample.columns["experts"] = self._experts.column(routed[:tokens], tokens)

    async def abort(self, engine_id: str) -> None:
        await self._engine.abort(engine_id)

    async def begin_update(self) -> None:
        # vLLM's own pause_generation sleeps for 20 ms, so that outputs under way are handled: see end_update
        await self._answer(self._engine.engine_core.pause_scheduler_async(mode="keep", clear_cache=False))
        if not self.adapters:
            await self._workers("corerl_begin_update")

    async def load(self, bucket: dict[str, Any], verify: bool) -> list[list[int]]:
        digests: list[list[int]] = await self._workers("corerl_load", bucket, verify)
        return digests if verify else []

    async def needs(self, weights: list[list[Any]]) -> list[dict[str, Any]] | None:
        found = await self._workers("corerl_needs", weights)
        return None if None in found else list(found)

    async def expect(self, plans: list[dict[str, Any]]) -> None:
        await self._workers("corerl_expect", plans)

    async def take(self, number: int, places: list[list[int]], verify: bool) -> list[str]:
        changed = await self._workers("corerl_take", number, places, verify)
        return [name for each in changed for name in each]

    async def end_update(self, complete: bool, adapter: int) -> tuple[list[str], dict[str, int | None]]:
        lacking = await self._workers("corerl_end_update", complete, adapter)
        states = self._engine.output_processor.request_states
        sent = {name: state.external_req_id for name, state in states.items()}
        # with what runs (True), vLLM would keep all prefixes
        resets = await self._answer(every_core(self._engine, "reset_prefix_cache", True, False))
        if self.reads_images:  # outputs of the tower before the update
            await self._answer(self._engine.engine_core.call_utility_async("reset_encoder_cache"))
        counts = {name: count for reset in resets if not isinstance(reset, bool) for name, count in reset.items()}
        tokens = {external: counts.get(name) for name, external in sent.items()}  # None: ended, its output is under way
        return sorted({name for each in lacking for name in each}), tokens

    async def resume(self) -> None:
        await self._answer(self._engine.resume_generation())

    async def sleep(self) -> None:
        if self._level:
            await self._answer(self._engine.sleep(level=self._level))

    async def wake(self, what: list[str]) -> None:
        if self._level:
            await self._answer(self._engine.wake_up(what))

    async def health(self) -> None:
        await self._engine.check_health()

    async def start_profile(self, asked: dict[str, Any], name: str) -> None:
        await self._workers("corerl_start_profile", asked, name)

    async def stop_profile(self, rank: int) -> None:
        await self._workers("corerl_stop_profile", rank)

    async def _workers(self, method: str, *args: Any) -> list[Any]:
        answers: list[Any] = await self._answer(workers_of(self._engine, method, *args))
        return answers

    async def _answer(self, call: Awaitable[Any]) -> Any:
        """Await the engine's core; without this, a call that is unanswered when the core ends would wait for ever."""
        task = asyncio.ensure_future(call)
        while not (await asyncio.wait([task], timeout=1))[0]:
            await self._engine.check_health()
        return task.result()


async def every_core(engine: Any, method: str, *args: Any) -> list[Any]:
    """The answers of the cores of all data parallel ranks; vLLM's own call returns the first one's alone."""
    client = engine.engine_core
    cores = client.core_engines if engine.vllm_config.parallel_config.data_parallel_size > 1 else ()
    if not cores:
        return [await client.call_utility_async(method, *args)]
    return await asyncio.gather(*(client._call_utility_async(method, *args, engine=core) for core in cores))


async def workers_of(engine: Any, method: str, *args: Any) -> list[Any]:
    """The answers of all workers, in the order of data parallel, pipeline and tensor parallel ranks."""
    answers = await every_core(engine, "collective_rpc", method, None, args, None)
    return [each for of_core in answers for each in of_core]


def part_of(stats: Any) -> int:
    """The data parallel rank of a scheduler's statistics."""
    return int((stats.kv_connector_stats or {}).get(PART, 0))


def _prompt(asked: dict[str, Any]) -> Any:
    if not asked.get("images"):
        return {"prompt_token_ids": asked["prompt_ids"]}
    from corerl_vllm_engine.images import prompt_with

    return prompt_with(asked["prompt_ids"], asked["images"])


def load_of(stats: Any, room: int) -> dict[str, float]:
    """The load by vLLM's statistics; those that vLLM makes for its log count no preemptions."""
    return {
        "room": room,
        "running": stats.num_running_reqs,
        "waiting": stats.num_waiting_reqs,
        "preempted": (stats.kv_connector_stats or {}).get(PREEMPTED, 0),
        "cache_usage": round(stats.kv_cache_usage, 3),
    }


def sampling_params(sample: Any, likely: int) -> SamplingParams:
    """vLLM's parameters; only ``stop_token_ids`` stop.

    Args:
        likely: number of most likely tokens that are reported at each position.
    """
    asked = sample.asked
    return SamplingParams(
        max_tokens=asked["max_tokens"],
        temperature=asked["temperature"],
        top_p=asked["top_p"],
        top_k=asked["top_k"],
        min_p=asked["min_p"],
        stop_token_ids=[] if asked["ignore_eos"] else asked["stop_token_ids"],
        ignore_eos=True,
        seed=sample.seed,
        logprobs=likely,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
