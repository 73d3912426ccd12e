"""Agents over HTTP beside the same requests given to the engine directly: tokens/s of the engine, on one GPU.

    python benchmarks/gpu/agents.py --model /tmp/material/qwen2.5-1.5b --python .venv-vllm/bin/python

``--sessions`` agents in a process of their own ask ``--turns`` times each through the endpoint (chat completions,
``--tokens`` tokens an answer) and sleep between two turns, as for a tool, for a drawn time. Then the same requests and
sleeps go to the engine's queue without endpoint, chats and record; their first token is another one, so that no cache
knows them. Prints one JSON object; ends with exit code 1 if the endpoint's share is below 0.95. ``--backend hf`` with a
small model is a trial on a CPU.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import load_tokenizer
from corerl.models import compute_dtype, resolve_device
from corerl.plugins import load_plugins
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder, Services
from corerl.rollout.request_queue import RequestQueue
from corerl_torch.loading import load_model

LEAST = 0.95
PROMPT = "Find the file that holds the answer, step by step, and say which tool you want to use next. " * 4
RESULT = "The tool says: nothing was found in this folder; there are seven others."
ROOM = 8192

CLIENT = """
import asyncio, json, sys
import aiohttp

async def session(http, given, facts):
    messages = [{"role": "user", "content": facts["prompt"]}]
    for seconds in given["sleeps"]:
        body = {"model": "policy", "messages": messages, "max_tokens": facts["tokens"]}
        headers = {"Authorization": "Bearer " + given["key"]}
        async with http.post(given["url"] + "/chat/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            message = (await answer.json())["choices"][0]["message"]
        await asyncio.sleep(seconds)
        messages += [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": facts["result"]}]

async def main(facts):
    connections = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connections, timeout=aiohttp.ClientTimeout(600)) as http:
        await asyncio.gather(*(session(http, given, facts) for given in facts["sessions"]))

asyncio.run(main(json.load(sys.stdin)))
"""


class Counted:
    """Counts the tokens of an engine.

    Attributes:
        requests: by session, in their order.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.tokens = 0
        self.requests: dict[str, list[GenerationRequest]] = {}

    async def generate(self, requests: Sequence[GenerationRequest], on_finished: Any) -> None:
        """For :class:`RequestQueue`."""
        for request in requests:
            self.requests.setdefault(request.session, []).append(request)

        def finished(position: int, completions: list[Completion]) -> None:
            self.tokens += sum(len(each.token_ids) for each in completions)
            on_finished(position, completions)

        await self._backend.generate(requests, finished)


async def through_endpoint(
    config: TrainConfig, engine: Counted, sleeps: Sequence[Sequence[float]], tokens: int, client: str
) -> float:
    """Seconds of all sessions over HTTP."""
    hook, tokenizer = load_plugins().hook, load_tokenizer(config.model)
    endpoint = hook.make_endpoint(config=config, tokenizer=tokenizer)
    services = Services(hook.make_chats(config=config, tokenizer=tokenizer), endpoint)
    queue = RequestQueue(engine.generate)
    sampling = SamplingParams(ROOM, ignore_eos=True)
    models = []
    for number in range(len(sleeps)):
        group = Group(Prompt(number, (1,), [], "bench", "", {}), number, sampling, f"s{number}", "bench", number)
        models.append(Recorder(queue, tokenizer, group, 0, ROOM, services))
    sessions = [
        {"url": model.base_url, "key": model.api_key, "sleeps": given}
        for model, given in zip(models, sleeps, strict=True)
    ]
    facts = {"prompt": PROMPT, "result": RESULT, "tokens": tokens, "sessions": sessions}
    process = await asyncio.create_subprocess_exec(client, "-c", CLIENT, stdin=asyncio.subprocess.PIPE)
    start = time.perf_counter()
    await asyncio.wait_for(process.communicate(json.dumps(facts).encode()), 900)
    seconds = time.perf_counter() - start
    assert process.returncode == 0, "the client failed"
    failures = [model.failure for model in models if model.failure is not None]
    assert not failures, failures[0]
    for model in models:
        model.end()
    endpoint.close()
    return seconds


async def directly(engine: Counted, sessions: Sequence[Sequence[GenerationRequest]], sleeps: Any) -> float:
    """Seconds of the same requests and sleeps without HTTP."""
    queue = RequestQueue(engine.generate)

    async def one(requests: Sequence[GenerationRequest], pauses: Sequence[float]) -> None:
        for request, pause in zip(requests, pauses, strict=True):
            first, *others = request.prompt_ids
            ids = [next(other for other in others if other != first), *others]
            await queue.complete(dataclasses.replace(request, prompt_ids=ids, request_id=f"d-{request.request_id}"))
            await asyncio.sleep(pause)

    start = time.perf_counter()
    await asyncio.gather(*map(one, sessions, sleeps))
    return time.perf_counter() - start


def main() -> None:
    asked = _arguments()
    draw = random.Random(0)
    sleeps = [[draw.uniform(0.0, 2 * asked.sleep) for _ in range(asked.turns)] for _ in range(asked.sessions)]
    config = TrainConfig(ModelConfig(path=str(asked.model), load_format=asked.load_format))
    config.data, config.rollout = DataConfig(max_prompt_length=ROOM, max_response_length=ROOM), RolloutConfig()
    options: dict[str, Any] = {"name": asked.backend}
    if asked.backend != "hf":
        options |= {"python": asked.python, "max_model_len": ROOM}
    backend: Any = (
        load_plugins()
        .registries.rollout_backends.select(options)
        .load()(config.model, config.rollout, device=resolve_device("auto"))
    )
    try:
        if hasattr(backend, "started"):
            backend.started()
        if asked.load_format == "dummy" and asked.backend != "hf":
            device = resolve_device("auto")
            policy = load_model(config.model, "lm", device=device, dtype=compute_dtype(config.model, device))
            backend.update_weights([(name, each.detach()) for name, each in policy.named_parameters()], 1)
            del policy
        warm = Counted(backend)
        asyncio.run(through_endpoint(config, warm, [each[:2] for each in sleeps], asked.tokens, sys.executable))
        served = Counted(backend)
        over_http = asyncio.run(through_endpoint(config, served, sleeps, asked.tokens, sys.executable))
        bare = Counted(backend)
        alone = asyncio.run(directly(bare, list(served.requests.values()), sleeps))
    finally:
        backend.close()
    rates = served.tokens / over_http, bare.tokens / alone
    prompt = [len(request.prompt_ids) for each in served.requests.values() for request in each]
    report = {
        "sessions": asked.sessions,
        "turns": asked.turns,
        "tokens": served.tokens,
        "longest request": max(prompt),
        "tokens/s over HTTP": rates[0],
        "tokens/s directly": rates[1],
        "ratio": rates[0] / rates[1],
    }
    print(text := json.dumps(report), flush=True)
    if (out := os.environ.get("OUT")) is not None:
        (Path(out) / "agents.json").write_text(text)
    sys.exit(report["ratio"] < LEAST)


def _arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--model", type=Path, required=True, help="folder of a model with a tokenizer")
    cli.add_argument("--backend", default="vllm")
    cli.add_argument("--load-format", choices=["auto", "dummy"], default="dummy")
    cli.add_argument("--python", help="interpreter of the engine's environment")
    cli.add_argument("--sessions", type=int, default=512)
    cli.add_argument("--turns", type=int, default=10)
    cli.add_argument("--tokens", type=int, default=128)
    cli.add_argument("--sleep", type=float, default=1.0, help="mean seconds of a tool")
    return cli.parse_args()


if __name__ == "__main__":
    main()
