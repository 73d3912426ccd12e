"""SGLang's engine with the interface of ``corerl_engine.server``."""

import asyncio
import copy
import json
import multiprocessing
import os
import socket
from contextlib import ExitStack, suppress
from multiprocessing import connection
from typing import Any

from corerl_engine.experts import ExpertsOf
from corerl_engine.recording import Recording
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.io_struct import (
    AbortReq,
    GenerateReqInput,
    ReleaseMemoryOccupationReqInput,
    ResumeMemoryOccupationReqInput,
    RpcReqInput,
    sock_recv,
    sock_send,
)
from sglang.srt.utils.hf_transformers_utils import get_config, get_context_length, get_hf_text_config

from corerl_sglang_engine import scheduler
from corerl_sglang_engine.adapter import named
from corerl_sglang_engine.requests import (
    UNUSED_POSITIONS,
    finish_reason,
    likeliest,
    routed_experts,
    sampling_params,
)

IDLE_SECONDS = 30.0

PORTS = 14
"""that SGLang derives from the address of data parallel ranks"""


class EngineDead(Exception):
    """A process of SGLang has died; SGLang then ends the whole engine process."""


class WatchedEngine(Engine):  # type: ignore[misc]
    """SGLang's engine with CoreRL's scheduler in its processes."""

    run_scheduler_process_func = staticmethod(scheduler.run)


async def start(settings: dict[str, Any]) -> "SglangEngine":
    """Start the engine; returns when it can generate."""
    started = WatchedEngine(**whole_arguments(settings))
    experts = ExpertsOf(settings["experts"]) if settings.get("experts") else None
    engine = SglangEngine(started, Recording(settings["record"], settings["top_log_probs"]), experts)
    engine.has_stages = started.server_args.pp_size > 1
    if settings.get("adapter"):
        engine.has_adapters = True
        await engine.ask("adapt", facts=settings["adapter"])
    devices = await engine.ask("devices")
    devices = devices[: len(devices) // settings.get("nodes", {"count": 1})["count"]]  # of this node: the first ranks
    engine.devices = sorted(set[str].intersection(*map(set, devices)))
    return engine


def follow(settings: dict[str, Any]) -> None:
    """Do the share of another node than the first.

    Raises:
        RuntimeError: a scheduler has ended.
    """
    os.environ["SGLANG_BLOCK_NONZERO_RANK_CHILDREN"] = "0"  # or it serves health checks, and waits for its first alone
    WatchedEngine(**whole_arguments(settings))
    schedulers = multiprocessing.active_children()
    ended = connection.wait([each.sentinel for each in schedulers])
    first = next(each for each in schedulers if each.sentinel in ended)
    first.join()
    raise RuntimeError(f"{first.name} (process {first.pid}) ended with exit code {first.exitcode}")


def whole_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """Arguments of SGLang's ServerArgs on this node."""
    arguments: dict[str, Any] = settings["engine_args"]
    found = arguments | {"context_length": context_length(arguments)}
    if nodes := settings.get("nodes"):
        found |= {"nnodes": nodes["count"], "node_rank": nodes["rank"]}
        found["dist_init_addr"] = f"{nodes['address']}:{nodes['port']}"
    elif found.get("dp_size", 1) > 1:
        found["dist_init_addr"] = f"127.0.0.1:{free_ports(PORTS)}"  # or engines of a machine would take the same
    return found


def free_ports(count: int) -> int:
    """The first of consecutive free ports of this machine."""
    while True:
        with ExitStack() as held:
            first: int = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            with suppress(OSError, OverflowError):
                for port in range(first + 1, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
                return first


def context_length(arguments: dict[str, Any]) -> int:
    """SGLang's argument: the given length, or all positions of the model, plus the positions that SGLang leaves unused.

    Raises:
        ValueError: the model has fewer positions; SGLang's own check is switched off.
    """
    overrides = json.loads(arguments.get("json_model_override_args", "{}"))
    config = get_config(
        arguments["model_path"],
        trust_remote_code=arguments["trust_remote_code"],
        revision=arguments.get("revision"),
        model_override_args=overrides,
    )
    longest: int = get_context_length(get_hf_text_config(copy.deepcopy(config))) + UNUSED_POSITIONS
    asked: int = arguments.get("context_length", longest)
    if asked > longest:
        positions = longest - UNUSED_POSITIONS
        raise ValueError(f"max_model_len is {asked - UNUSED_POSITIONS}, and the model has {positions} positions")
    return asked


class SglangEngine:
    """See ``corerl_engine.server.Engine``."""

    dead = EngineDead
    has_adapters = False
    has_stages = False
    """of layers, on ranks of a pipeline"""

    def __init__(self, engine: Any, recording: Recording, experts: ExpertsOf | None = None) -> None:
        self._engine, self._recording, self._experts = engine, recording, experts
        self._manager = engine.tokenizer_manager
        self._manager.context_len -= UNUSED_POSITIONS  # the limit for requests
        self._asking = asyncio.Lock()
        self.context: int = self._manager.context_len
        self.vocabulary: int = self._manager.model_config.vocab_size
        self._layers: int = self._manager.model_config.hf_text_config.num_hidden_layers
        self.devices: list[str] = []
        self.parts = [self]

    def progress(self) -> float:
        """The time of the last message from SGLang's processes, as in SGLang's own health check."""
        last: float = self._manager.last_receive_tstamp
        return last

    async def report(self) -> dict[str, float]:
        """The load of all ranks with requests of their own."""
        loads = [load for load in await self.ask("report") if load is not None]
        counts = {name: sum(load[name] for load in loads) for name in ("room", "running", "waiting", "preempted")}
        return counts | {"cache_usage": max(load["cache_usage"] for load in loads)}

    async def ask(self, operation: str, **arguments: Any) -> list[Any]:
        """The answers of all schedulers to one of CoreRL's operations."""
        request = RpcReqInput(method=operation, parameters={"arguments": json.dumps(arguments)})
        async with self._asking:
            answer = await asyncio.to_thread(self._exchange, request)
        answers = json.loads(answer.message)
        for each in answers:
            if "error" in each:
                raise RuntimeError(each["error"])
        return [each["answer"] for each in answers]

    def _exchange(self, request: RpcReqInput) -> Any:
        sock_send(self._engine.send_to_rpc, request)
        return sock_recv(self._engine.send_to_rpc)

    async def generate(self, sample: Any) -> None:
        likely = self._recording.reported(sample.asked, self.vocabulary)
        request = GenerateReqInput(
            rid=sample.engine_id,
            input_ids=sample.asked["prompt_ids"],
            sampling_params=sampling_params(sample.asked, sample.seed),
            return_logprob=True,
            logprob_start_len=-1,
            top_logprobs_num=likely,
            return_routed_experts=self._experts is not None,
            image_data=self._images(sample.asked),
            extra_key=named(sample.asked["adapter"]) if self.has_adapters else None,
            stream=sample.stops is not None,
        )
        try:
            async for output in self._manager.generate_request(request, None):
                facts = output["meta_info"]
                log_probs = [entry[0] for entry in facts.get("output_token_logprobs") or ()]
                sample.token_ids = list(output["output_ids"])[: len(log_probs)]
                sample.log_probs = log_probs[: len(sample.token_ids)]
                given = (facts["finish_reason"] or {"type": "abort"})["type"]  # none as long as it goes on
                sample.finish_reason = finish_reason(sample.asked, sample.token_ids, given)
                if likely:
                    top = likeliest(facts.get("output_top_logprobs") or (), len(sample.token_ids), likely)
                    sample.columns |= self._recording.columns(sample.asked, *top)
                if self._experts is not None and facts.get("routed_experts"):
                    tokens = len(sample.asked["prompt_ids"]) + len(sample.token_ids)
                    routed = routed_experts(facts["routed_experts"], self._layers, self._experts.top_k)
                    sample.columns["experts"] = self._experts.column(routed[:tokens], tokens)
                await sample.stop(self.abort)
        except asyncio.CancelledError:
            self._manager._dispatch_to_scheduler(AbortReq(rid=sample.engine_id))
            raise

    def _images(self, asked: dict[str, Any]) -> list[Any] | None:
        if not asked.get("images"):
            return None
        from corerl_sglang_engine.images import processor_output

        return [processor_output(asked["prompt_ids"], asked["images"], self._manager.image_token_id)]

    async def abort(self, engine_id: str) -> None:
        self._manager.abort_request(engine_id)

    async def begin_update(self) -> None:
        if self.has_stages:  # SGLang's schedulers of stages do not pause
            await self._idle("take new weights")
        await self.ask("begin_update")

    async def load(self, bucket: dict[str, Any], verify: bool) -> list[list[int]]:
        digests = await self.ask("load", bucket=bucket, verify=verify)
        return digests if verify else []

    async def needs(self, weights: list[list[Any]]) -> list[dict[str, Any]] | None:
        found = await self.ask("needs", named=weights)
        return None if None in found else found

    async def expect(self, plans: list[dict[str, Any]]) -> None:
        await self.ask("expect", plans=plans)

    async def take(self, number: int, places: list[list[int]], verify: bool) -> list[str]:
        changed = await self.ask("take", number=number, places=places, verify=verify)
        return [name for each in changed for name in each]

    async def end_update(self, complete: bool, adapter: int) -> tuple[list[str], dict[str, int]]:
        answers = await self.ask("end_update", complete=complete, adapter=adapter)
        lacking = {name for answer in answers for name in answer["lacking"]}
        return sorted(lacking), {name: count for answer in answers for name, count in answer["tokens"].items()}

    async def resume(self) -> None:
        await self.ask("resume")

    async def sleep(self) -> None:
        await self._idle("sleep")
        tags = ["kv_cache", "weights"]
        await self._manager.release_memory_occupation(ReleaseMemoryOccupationReqInput(tags=tags))
        await self._every_stage()

    async def wake(self, what: list[str]) -> None:
        await self._manager.resume_memory_occupation(ResumeMemoryOccupationReqInput(tags=what))
        await self._every_stage()

    async def _idle(self, what: str) -> None:
        """
        Raises:
            RuntimeError: requests are running.
        """
        idle = await self._manager.flush_cache(timeout_s=IDLE_SECONDS)
        if not idle.success:
            raise RuntimeError(f"requests are running: they must end before the engine can {what}")

    async def _every_stage(self) -> None:
        """Wait until the last stage has done what the first one has reported."""
        if self.has_stages:
            await self.ask("devices")

    async def start_profile(self, asked: dict[str, Any], name: str) -> None:
        await self.ask("start_profile", asked=asked, name=name)

    async def stop_profile(self, rank: int) -> None:
        await self.ask("stop_profile", rank=rank)

    async def health(self) -> None:
        await self.ask("devices")
