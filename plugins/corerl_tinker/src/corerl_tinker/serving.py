"""``corerl serve --tinker``: the parts of the server, its start and its end."""

import asyncio
import hashlib
import os
import secrets
import signal
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from corerl.config import typed
from corerl.contracts.adapters import are_sent
from corerl.contracts.checks import CheckedOptions
from corerl.contracts.config import TrainConfig
from corerl.contracts.rollout_backends import RolloutBackendFactory
from corerl.contracts.runtimes import Role, Runtime, RuntimeFactory
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.contracts.training_strategies import TrainingStrategyFactory
from corerl.data import load_tokenizer
from corerl.errors import ConfigError
from corerl.registry import Selected
from corerl.registry.parts import select_rollout_backend
from corerl.rollout.worker import RolloutWorker
from corerl.terminal import echo
from corerl.trainer.build import rollout_role
from corerl_check.requirements import require_engine
from corerl_gateway.options import KEY, EndpointOptions
from corerl_gateway.plugin import read_options
from corerl_gateway.services import ServeRequest
from corerl_tinker.api.server import Server
from corerl_tinker.api.service import Service
from corerl_tinker.api.wire import Limits
from corerl_tinker.compute import Compute
from corerl_tinker.options import TinkerOptions
from corerl_tinker.training.checkpoints import Checkpoints
from corerl_tinker.training.clients import Clients, Facts, TrainerWorker, strategy_spec
from corerl_tinker.training.sampler import Sampler

RANK, ALPHA = 32, 32
"""of adapters, by default: those of the SDK"""
ADAPTERS = 8
"""that the engine holds at a time, by default"""
LEAST_KEY = 16
"""characters of a key"""
PREFIX = "tml-"
"""of every key: the SDK checks it"""


@dataclass(frozen=True)
class Plan:
    """The parts of a server; nothing is started."""

    config: TrainConfig
    strategy: Selected[TrainingStrategyFactory]
    backend: Selected[RolloutBackendFactory]
    runtime: Selected[RuntimeFactory]
    tokenizer: ChatTokenizer
    endpoint: EndpointOptions
    options: TinkerOptions
    keys: tuple[str, ...]
    prints_key: bool


def serve(request: ServeRequest, options: TinkerOptions) -> None:
    """See :class:`corerl_gateway.services.Service`.

    Raises:
        RequestError: the config, the keys or the model cannot be used.
        RunError: the engine does not start, or the port is taken.
    """
    run(plan(request, options))


def plan(request: ServeRequest, options: TinkerOptions) -> Plan:
    """Check everything that needs no model."""
    values = dict(request.values)
    values["model"] = {"lora_rank": RANK, "lora_alpha": ALPHA, **(values.get("model") or {})}
    values["rollout"] = {"adapters": ADAPTERS, **(values.get("rollout") or {})}
    if options.max_length is not None:  # engines have room for both together
        values["data"] = {
            "max_prompt_length": options.max_length - 1,
            "max_response_length": 1,
            **(values.get("data") or {}),
        }
    config = typed.build(TrainConfig, values, explain_key=request.plugins.explain_key)
    check_model(config)
    endpoint = replace(read_options(config), port=request.port)
    if request.host is not None:
        endpoint = replace(endpoint, host=request.host, public_host=endpoint.public_host or request.host)
    endpoint.check(KEY)
    keys = read_keys(endpoint, request.api_key_env, os.environ)
    registries, runtime = request.plugins.registries, config.runtime
    strategy = registries.training_strategies.select(config.actor.strategy, "actor.strategy")
    backend = select_rollout_backend(config.rollout, registries)
    names = {"name_key": "runtime.name", "options_key": "runtime.options"}
    selected = registries.runtimes.select_named(runtime.name, runtime.options, **names)
    parts = ((strategy, "actor.strategy"), (backend, "rollout.options"), (selected, "runtime.options"))
    for part, name in parts:
        if isinstance(part.options, CheckedOptions):
            part.options.check(name, config)
    for part in (strategy, backend) if config.rollout.lora == "adapter" else ():
        if not (config.model.lora_rank and part.entry.facts.adapters):
            raise ConfigError("rollout.lora", f"cannot be adapter with '{part.entry.name}': set it to merged")
    require_engine(config, backend, selected)
    tokenizer = load_tokenizer(config.model, request.plugins)
    prints = request.api_key_env is None
    return Plan(config, strategy, backend, selected, tokenizer, endpoint, options, keys, prints)


def check_model(config: TrainConfig) -> None:
    """Raise ConfigError for another optimizer than that of clients' steps, adapters of a kind that clients do not have,
    and gradients that need a loss scale.
    """
    optimizer = config.actor.optim.optimizer
    if optimizer not in ("adamw", {"name": "adamw"}):
        raise ConfigError("actor.optim.optimizer", "is not what clients of Tinker step with, Adam's: leave it out")
    if config.model.dtype == "fp16":
        raise ConfigError("model.dtype", "fp16 needs a loss scale, which the steps of clients do not have: use bf16")
    for key in ("lora_rslora", "lora_dora"):
        if getattr(config.model, key):
            raise ConfigError(f"model.{key}", "is not what clients of Tinker train: leave it out")


def read_keys(options: EndpointOptions, name: str | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The keys, one for each user; without a variable a random one.

    Raises:
        ConfigError: the variable is not set or has a wrong key, or other machines would get a printed one.
    """
    if name is None:
        if not options.is_local:
            raise ConfigError("--host", f"{options.host} can be reached by other machines: name a key by --api-key-env")
        return (f"{PREFIX}{secrets.token_urlsafe(32)}",)
    keys = tuple(each.strip() for each in environment.get(name, "").split(","))
    for key in keys:
        if len(key) < LEAST_KEY or not key.startswith(PREFIX) or not key.isprintable() or not key.isascii():
            right = f"keys of at least {LEAST_KEY} printable characters, which begin with {PREFIX}"
            raise ConfigError("--api-key-env", f"{name} must hold {right}, separated by commas")
    if len(set(keys)) < len(keys):
        raise ConfigError("--api-key-env", f"{name} has a key twice")
    return keys


def owners(keys: tuple[str, ...]) -> dict[str, str]:
    """The owner that each key stands for; '' if there is one key."""
    if len(keys) == 1:
        return {keys[0]: ""}
    return {key: hashlib.sha256(key.encode()).hexdigest()[:16] for key in keys}


def run(plan: Plan) -> None:
    """Start the engine and the trainer, and serve until SIGINT or SIGTERM."""
    with ExitStack() as stack:
        runtime = stack.enter_context(closing(plan.runtime.load()(plan.config.runtime)))
        compute = Compute()
        asyncio.run(_serve(plan, runtime, compute))
    echo("stopped")


async def _serve(plan: Plan, runtime: Runtime, compute: Compute) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    try:
        start = compute.submit("start", lambda: build(plan, runtime, compute))
        asked = loop.create_task(stopping.wait())
        await asyncio.wait((start, asked), return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            echo(f"asked to stop: the start has {plan.options.stop_timeout:g} s to end")
            return
        service = start.result()
        server = Server(service, plan.endpoint, owners(plan.keys))
        started: asyncio.Future[str] = loop.create_future()
        serving = loop.create_task(server.run(stopping, started))
        await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            echo(_greeting(plan, service, started.result()))
        await serving
    finally:
        stopped = await asyncio.to_thread(compute.close, plan.options.stop_timeout)
        if not stopped:
            echo(f"the computation under way did not end within {plan.options.stop_timeout:g} s, and is given up")


def _greeting(plan: Plan, service: Service, url: str) -> str:
    trained = f"adapters of rank {plan.config.model.lora_rank}" if service.trainer.facts.is_lora else "all weights"
    key = f" TINKER_API_KEY={plan.keys[0]}" if plan.prints_key else ""
    return f"{service.name}, {trained}: TINKER_BASE_URL={url}{key}; Ctrl-C ends it"


def build(plan: Plan, runtime: Runtime, compute: Compute) -> Service:
    """Load the models; in the computing thread."""
    config, options, entry = plan.config, plan.options, plan.strategy.entry
    actor = Role("actor", "actor.strategy", entry.name, entry.facts.distributed)
    engines = rollout_role(config, plan.backend.entry)
    runtime.reserve([actor, engines])
    trainer = Clients(runtime.spawn(actor, TrainerWorker, config), strategy_spec(config))
    rollout = runtime.spawn(engines, RolloutWorker, config)
    is_adapter = are_sent(config, entry.facts, plan.backend.entry.facts)
    sampler = Sampler(trainer, runtime, rollout, plan.tokenizer, config.rollout.adapters if is_adapter else 1)
    limits = model_limits(trainer.facts, options.max_length)
    checkpoints, stop = Checkpoints(Path(options.folder)), plan.tokenizer.stop_token_ids
    return Service(trainer, sampler, compute, checkpoints, limits, options, config.model.path, stop)


def model_limits(facts: Facts, max_length: int | None) -> Limits:
    """The vocabulary and the longest sequence of a model.

    Raises:
        ConfigError: the option is longer.
    """
    most = facts.positions
    if max_length is not None and most is not None and max_length > most:
        raise ConfigError("tinker.max_length", f"{max_length} is more than the {most} positions of the model")
    return Limits(facts.vocabulary, max_length or most or 32768)
