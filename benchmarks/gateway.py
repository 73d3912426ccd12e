"""The endpoint of agents: its cost beside the same requests in process, and thousands of sessions at once.

The policy is a stub that answers at once (``overhead``) or after 50 ms (``sessions``) with 64 tokens. The client is a
process of its own, so that processor time is the server's alone::

    python benchmarks/gateway.py overhead
    python benchmarks/gateway.py sessions --sessions 2000
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import aiohttp

from corerl.contracts.agents import Address, ChatReply, Sampled
from corerl_gateway.dialects.routes import ModelList
from corerl_gateway.endpoint import HttpEndpoint, more_files
from corerl_gateway.options import EndpointOptions

CONTEXT, ANSWER = 8192, 64
"""tokens"""
CHARACTERS = 4
"""of a token"""
MOST_MS = 2.0
"""required: processor time of a request over HTTP, less that of the same one in process"""
PATHS = {"chat completions": "/chat/completions", "Responses": "/responses", "Messages": "/messages"}
TOKENS = "/inference/v1/generate"


@dataclass
class Stub:
    """A model that answers ``seconds`` later, whatever it is asked."""

    seconds: float = 0.0
    tokenizer: Any = None

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        media: Mapping[str, Any] | None = None,
    ) -> Sampled:
        await asyncio.sleep(self.seconds)
        return Sampled([7] * ANSWER, "word " * ANSWER, "stop", [-0.5] * ANSWER)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> ChatReply:
        sampled = await self.generate(())
        return ChatReply({"role": "assistant", "content": sampled.text}, sampled, CONTEXT)

    @property
    def base_url(self) -> str:
        raise NotImplementedError

    api_key = base_url


def messages(tokens: int) -> list[dict[str, Any]]:
    """A chat of eight turns."""
    text = ("word" * (tokens * CHARACTERS // 4 // 8)) or "x"
    return [{"role": ("user", "assistant")[turn % 2], "content": text} for turn in range(7)] + [
        {"role": "user", "content": text}
    ]


def body(path: str, tokens: int) -> dict[str, Any]:
    """A request in the dialect of a path."""
    if path == TOKENS:
        return {"token_ids": [1000 + number % 9000 for number in range(tokens)], "sampling_params": {"logprobs": 1}}
    said = messages(tokens)
    return {"model": "x", "input" if path == "/responses" else "messages": said, "max_tokens": ANSWER}


async def ask(session: aiohttp.ClientSession, address: Address, path: str, sent: bytes) -> float:
    """Seconds of one request.

    Raises:
        RuntimeError: its answer was an error.
    """
    began = time.perf_counter()
    headers = {"Authorization": f"Bearer {address.api_key}", "Content-Type": "application/json"}
    async with session.post(address.base_url + path, data=sent, headers=headers) as response:
        answer = await response.read()
    if response.status != 200:
        raise RuntimeError(answer[:200])
    return time.perf_counter() - began


def client(wire: Connection, addresses: Sequence[Address], path: str, sent: bytes, requests: int, own: bool) -> None:
    """Run in a process: all sessions at once, each with its requests one after the other. Sends (seconds, errors)."""

    async def play(session: aiohttp.ClientSession, address: Address) -> list[float | Exception]:
        found: list[float | Exception] = []
        for _ in range(requests):
            try:
                found.append(await ask(session, address, path, sent))
            except Exception as error:
                found.append(error)
        return found

    async def main() -> None:
        more_files()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(300)) as session:
            if own:
                await ask(session, addresses[0], path, sent)
            wire.send("ready")
            wire.recv()
            found = [each for one in await asyncio.gather(*(play(session, each) for each in addresses)) for each in one]
        times = [each for each in found if isinstance(each, float)]
        wire.send((times, [repr(each) for each in found if isinstance(each, Exception)]))

    asyncio.run(main())


async def served(
    models: Sequence[Stub], path: str, sent: bytes, requests: int
) -> tuple[float, float, list[float], list[str]]:
    """(processor seconds of this process, seconds, seconds of each request, errors)."""
    endpoint = HttpEndpoint(EndpointOptions(), ModelList("stub", 2 * CONTEXT), {})
    addresses = [endpoint.open(model) for model in models]
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    arguments = (theirs, addresses, path, sent, requests, True)
    process = multiprocessing.get_context("spawn").Process(target=client, args=arguments, daemon=True)
    process.start()
    await asyncio.to_thread(ours.recv)
    cpu, began = time.process_time(), time.perf_counter()
    ours.send("go")
    times, errors = await asyncio.to_thread(ours.recv)
    spent, took = time.process_time() - cpu, time.perf_counter() - began
    await asyncio.to_thread(process.join, 60)
    endpoint.close()
    return spent, took, times, errors


async def in_process(ask_once: Callable[[], Any], requests: int) -> float:
    """Processor milliseconds of a request to the model itself."""
    cpu = time.process_time()
    for _ in range(requests):
        await ask_once()
    return (time.process_time() - cpu) / requests * 1000


def overhead(requests: int) -> dict[str, Any]:
    """Processor milliseconds of a request over HTTP, less those in process, of each dialect."""
    found: dict[str, Any] = {}
    stub = Stub()
    for name, path in {**PATHS, "tokens": TOKENS}.items():
        for streams in (False, True):
            sent = json.dumps({**body(path, CONTEXT), "stream": streams}).encode()
            spent, _, times, errors = asyncio.run(served([stub], path, sent, requests))
            if errors:
                raise RuntimeError(errors[0])
            bare = asyncio.run(in_process(lambda: stub.chat(messages(1)), requests))
            found[f"{name}{', streamed' if streams else ''}"] = {
                "http_ms": spent / requests * 1000,
                "in_process_ms": bare,
                "overhead_ms": spent / requests * 1000 - bare,
                "median_latency_ms": statistics.median(times) * 1000,
                "body_kib": len(sent) / 1024,
            }
    return found


def sessions(count: int, requests: int) -> dict[str, Any]:
    """Sessions at once, each with its own model and requests of 8k tokens one after the other."""
    sent = json.dumps(body("/chat/completions", CONTEXT)).encode()
    models = [Stub(0.05) for _ in range(count)]
    spent, took, times, errors = asyncio.run(served(models, "/chat/completions", sent, requests))
    whole = count * requests
    return {
        "sessions": count,
        "requests": whole,
        "errors": len(errors),
        "first_error": errors[0] if errors else "",
        "requests_per_s": whole / took,
        "server_cpu_ms": spent / whole * 1000,
        "p50_ms": statistics.median(times) * 1000,
        "p99_ms": sorted(times)[int(0.99 * (len(times) - 1))] * 1000,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["overhead", "sessions"])
    parser.add_argument("--requests", type=int, default=0, help="of each session; default: 1000, and 5 of sessions")
    parser.add_argument("--sessions", type=int, default=2000)
    given = parser.parse_args()
    if given.part == "overhead":
        found = overhead(given.requests or 1000)
        print(f"{'dialect':<30}{'http ms':>9}{'in process':>12}{'overhead':>10}{'latency':>9}{'body KiB':>10}")
        for name, row in found.items():
            print(
                f"{name:<30}"
                + "".join(f"{value:>{width}.3f}" for value, width in zip(row.values(), (9, 12, 10, 9, 10), strict=True))
            )
        worst = max(row["overhead_ms"] for row in found.values())
        print(f"largest overhead: {worst:.2f} ms of processor (at most {MOST_MS})")
        print(json.dumps(found))
        raise SystemExit(worst > MOST_MS)
    result = sessions(given.sessions, given.requests or 5)
    for name, value in result.items():
        print(f"{name:<20}{value:.2f}" if isinstance(value, float) else f"{name:<20}{value}")
    print(json.dumps(result))
    raise SystemExit(result["errors"] > 0)


if __name__ == "__main__":
    main()
