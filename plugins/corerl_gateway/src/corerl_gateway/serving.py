"""A rollout backend behind the endpoint, without a run."""

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from corerl.contracts.agents import ChatFactory
from corerl.contracts.checks import CheckedOptions
from corerl.contracts.config import TrainConfig
from corerl.contracts.rollout_backends import RolloutBackendFactory
from corerl.contracts.runtimes import RuntimeFactory
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data import load_tokenizer
from corerl.errors import ConfigError
from corerl.plugins import Plugins
from corerl.registry import Selected
from corerl.registry.parts import select_rollout_backend
from corerl.rollout.event_loop import EventLoop
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.requests import training_sampling
from corerl.rollout.worker import RolloutWorker
from corerl.terminal import echo, say
from corerl.trainer.build import rollout_role
from corerl_check.requirements import require_engine
from corerl_gateway.endpoint import HttpEndpoint, model_list
from corerl_gateway.options import KEY, OPEN_KEY, EndpointOptions
from corerl_gateway.plugin import read_options
from corerl_gateway.served_model import Serving
from corerl_gateway.sessions import Session

LEAST_KEY = 16
"""characters of a key"""


@dataclass(frozen=True)
class ServingPlan:
    """The parts of a server; nothing is started."""

    config: TrainConfig
    backend: Selected[RolloutBackendFactory]
    runtime: Selected[RuntimeFactory]
    tokenizer: ChatTokenizer
    chats: ChatFactory | None
    options: EndpointOptions
    key: str

    @property
    def room(self) -> int:
        """Tokens of a request and its answer together."""
        return self.config.data.max_prompt_length + self.config.data.max_response_length


def plan_serving(
    config: TrainConfig, plugins: Plugins, host: str | None, port: int, api_key_env: str | None
) -> ServingPlan:
    """Read the tokenizer and check everything that needs no engine.

    Args:
        host: None: that of the config's endpoint.

    Raises:
        RequestError: the config, the key, the model or the engine cannot be used.
    """
    options = replace(read_options(config), port=port)
    if host is not None:
        options = replace(options, host=host, public_host=options.public_host or host)
    options.check(KEY)
    key = read_key(options, api_key_env, os.environ)
    registries, runtime = plugins.registries, config.runtime
    backend = select_rollout_backend(config.rollout, registries)
    names = {"name_key": "runtime.name", "options_key": "runtime.options"}
    selected = registries.runtimes.select_named(runtime.name, runtime.options, **names)
    for part, name in ((backend, "rollout.options"), (selected, "runtime.options")):
        if isinstance(part.options, CheckedOptions):
            part.options.check(name, config)
    require_engine(config, backend, selected)
    tokenizer = load_tokenizer(config.model, plugins)
    if fault := tokenizer.end_of_turn_fault():
        say(fault)
    chats = plugins.hook.make_chats(config=config, tokenizer=tokenizer)
    return ServingPlan(config, backend, selected, tokenizer, chats, options, key)


def read_key(options: EndpointOptions, name: str | None, environment: Mapping[str, str]) -> str:
    """The key of all clients.

    Raises:
        ConfigError: the variable is not set, its key is short, or other machines would need no key of their own.
    """
    if name is None:
        if not options.is_local:
            raise ConfigError("--host", f"{options.host} can be reached by other machines: name a key by --api-key-env")
        return OPEN_KEY
    key = environment.get(name, "")
    if len(key) < LEAST_KEY or not key.isprintable() or not key.isascii():
        raise ConfigError("--api-key-env", f"{name} must hold a key of at least {LEAST_KEY} printable characters")
    return key


def run_serving(plan: ServingPlan) -> None:
    """Start the engine, and serve until SIGINT or SIGTERM.

    Raises:
        RunError: the engine does not start, or the port is taken.
    """
    config = plan.config
    with ExitStack() as stack:
        runtime = stack.enter_context(closing(plan.runtime.load()(config.runtime)))
        role = rollout_role(config, plan.backend.entry)
        runtime.reserve([role])
        rollout = runtime.spawn(role, RolloutWorker, config)
        loop = EventLoop(background=False)
        stack.callback(loop.close)
        sampling = training_sampling(config, plan.tokenizer.stop_token_ids)
        queue = RequestQueue(rollout.generate)
        loop.run(_serve(plan, Serving(queue, plan.tokenizer, plan.chats, sampling, plan.room)))
    echo("stopped")


async def _serve(plan: ServingPlan, serving: Serving) -> None:
    endpoint = HttpEndpoint(plan.options, model_list(plan.config.model.path, plan.room), {})
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    address = endpoint.add(Session(serving, number="", key=plan.key))
    key = f", key '{OPEN_KEY}'" if plan.key == OPEN_KEY else ""
    echo(f"{plan.config.model.path} by '{plan.backend.entry.name}' at {address.base_url}{key}; Ctrl-C ends it")
    try:
        await stopping.wait()
    finally:
        endpoint.shut(address)
        endpoint.close()
