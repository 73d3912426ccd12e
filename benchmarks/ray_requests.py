"""Generation requests under Ray: what a request under way costs the controller.

Each request is a call of its own, as the turns of episodes are; all are made at once. Two made-up engines answer each
request after the same time. Measured: requests under way at a time in both engines, threads of the controller, and its
processor time, beside that of the same number of bare waits in an event loop::

    python benchmarks/ray_requests.py --requests 2000
"""

import argparse
import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.dispatch import dispatch
from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished, SamplingParams
from corerl.contracts.runtimes import Role
from corerl_ray.options import RayOptions
from corerl_ray.runtime import RayRuntime

ENGINE = Role("rollout", "rollout.name", "engine", distributed=True)
TOKENS = 256
"""of a prompt, and of a response"""


class Engine:
    """Answers each request after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.running, self.most = seconds, 0, 0

    @dispatch("spread")
    async def generate(self, requests: Sequence[GenerationRequest], on_finished: OnFinished) -> None:
        async def one(position: int) -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(self.seconds)
            self.running -= 1
            on_finished(position, [Completion([7] * TOKENS, [-0.5] * TOKENS, "length", 0)])

        await asyncio.gather(*(one(position) for position in range(len(requests))))

    def most_running(self) -> int:
        """At a time."""
        return self.most


async def ask(rollout: Any, number: int) -> int:
    """All requests, each in a call of its own; the most threads that this process had."""
    most = threading.active_count()

    async def one(name: int) -> None:
        nonlocal most
        request = GenerationRequest(str(name), [1] * TOKENS, SamplingParams(TOKENS, seed=name), session=str(name))
        await rollout.generate([request], lambda *_: None)
        most = max(most, threading.active_count())

    await asyncio.gather(*(one(name) for name in range(number)))
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a request in the engine")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    ray.init("local", num_cpus=10, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    runtime = RayRuntime(RuntimeConfig(name="ray"), RayOptions(workers=1, rollout_workers=given.workers))
    rollout: Any = runtime.spawn(ENGINE, Engine, given.seconds)
    asyncio.run(ask(rollout, 10))  # warms up
    before = threading.active_count()
    start, began = time.process_time(), time.perf_counter()
    most = asyncio.run(ask(rollout, given.requests))
    used, took = time.process_time() - start, time.perf_counter() - began
    running = ray.get([member.host.call.remote("most_running", {}) for member in rollout.members])
    runtime.close()
    print(f"{'requests':>9} {'under way':>10} {'seconds':>8} {'threads more':>13} {'controller ms each':>19}")
    print(f"{given.requests:9} {sum(running):10} {took:8.1f} {most - before:13} {1000 * used / given.requests:19.3f}")


if __name__ == "__main__":
    main()
