"""Rules between keys, checked before anything is loaded; corerl-torch, which all strategies need, has the hook."""

from collections.abc import Iterator
from contextlib import suppress

from corerl.contracts.adapters import hold_reference
from corerl.contracts.config import RolloutConfig, TrainConfig
from corerl.errors import ConfigError, RequestError, UntrustedError
from corerl.registry.parts import Parts
from corerl_check import bitwise
from corerl_check.shares import SpansNodes


def violations(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    """An error for every broken rule; a rule that reads options of code that must not run is left out."""
    for rule in (
        _check_groups,
        _check_workers,
        _check_batches,
        _check_kl,
        _check_zero_advantage,
        _check_rollout_correction,
        _check_record,
        _check_lora,
        _check_overlap,
        bitwise.violations,
    ):
        with suppress(UntrustedError):
            yield from rule(config, parts)
    yield from _check_sampling(config)
    yield from _check_staleness(config)
    yield from _check_optimizer(config)
    yield from _check_schedule(config)


def _check_groups(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    for key, part in parts.selected():
        if "groups" in part.entry.needs and config.rollout.n < 2:
            yield ConfigError(
                "rollout.n",
                f"must be at least 2, not {config.rollout.n}: {key}={part.entry.name} compares the responses to one "
                "prompt",
            )


def _check_record(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    backend, strategy = parts.rollout_backend.entry, parts.strategy.entry
    for column in config.rollout.record:
        if column not in backend.facts.records:
            known = ", ".join(backend.facts.records) or "no column of tokens"
            yield ConfigError("rollout.record", f"'{backend.name}' cannot record '{column}'; it records {known}")
        elif column not in strategy.facts.replays:
            known = ", ".join(strategy.facts.replays) or "no column of tokens"
            yield ConfigError(
                "rollout.record", f"strategy '{strategy.name}' cannot replay '{column}'; it replays {known}"
            )


def _check_lora(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    model, rollout = config.model, config.rollout
    asked = {"model.lora_rslora": model.lora_rslora, "model.lora_dora": model.lora_dora, "rollout.lora": rollout.lora}
    if rollout.adapters > 1:
        yield ConfigError("rollout.adapters", f"is {rollout.adapters}: a run trains one policy, set it to 1")
    if not model.lora_rank:
        yield from (ConfigError(key, "needs model.lora_rank of at least 1") for key, value in asked.items() if value)
    elif rollout.lora == "adapter":
        strategy, backend = parts.strategy.entry, parts.rollout_backend.entry
        for wrong, why in (
            (not strategy.facts.adapters, f"strategy '{strategy.name}' sends all weights"),
            (not backend.facts.adapters, f"'{backend.name}' takes all weights"),
            (model.lora_dora, "engines get DoRA merged (model.lora_dora)"),
            (
                model.load_format == "dummy",
                "random weights of trainer and engine differ (model.load_format=dummy)",
            ),
        ):
            if wrong:
                yield ConfigError("rollout.lora", f"cannot be adapter: {why}; set it to merged")


def _check_workers(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    runtime, rollout = config.runtime, config.rollout
    workers = runtime.nnodes * runtime.n_gpus_per_node
    for key, strategy in (
        ("actor.strategy", parts.strategy),
        ("ref.strategy", parts.ref_strategy),
        ("critic.strategy", parts.critic_strategy),
    ):
        if workers > 1 and strategy is not None and not strategy.entry.facts.distributed:
            yield ConfigError(
                key,
                f"'{strategy.entry.name}' runs in one process, and runtime.nnodes × runtime.n_gpus_per_node = "
                f"{runtime.nnodes} × {runtime.n_gpus_per_node} = {workers} GPUs get a worker each: take a distributed "
                "one such as fsdp, or one GPU",
            )
    own, size = rollout.n_gpus_per_node, rollout.gpus_per_engine
    gpus, whose = (own, "rollout.n_gpus_per_node") if own else (runtime.n_gpus_per_node, "runtime.n_gpus_per_node")
    nodes = rollout.nnodes if own else runtime.nnodes
    spans = isinstance(parts.rollout_backend.options, SpansNodes) and runtime.name == "ray"
    works = [each for each in range(1, gpus + 1) if gpus % each == 0]
    works += [gpus * each for each in range(2, nodes + 1) if nodes % each == 0 and spans]
    for name in ("pipeline_model_parallel_size", "data_parallel_size"):
        if (parts_of := getattr(rollout, name)) > 1 and not isinstance(parts.rollout_backend.options, SpansNodes):
            engine = parts.rollout_backend.entry.name
            yield ConfigError(
                f"rollout.{name}", f"is {parts_of}, and '{engine}' has none: set 1, or use vllm or sglang"
            )
    if gpus and size not in works:
        yield ConfigError(
            "rollout.tensor_model_parallel_size",
            f"{_product(rollout)}{size} GPUs of an engine do not divide {whose}={gpus}, and an engine has GPUs of one "
            f"machine"
            f"{', or all GPUs of several' if spans else ''}: {', '.join(map(str, works))} would",
        )
    elif size > gpus > 0:
        assert isinstance(parts.rollout_backend.options, SpansNodes)
        try:
            parts.rollout_backend.options.check_nodes(size // gpus)
        except ConfigError as error:
            yield error


def _product(rollout: RolloutConfig) -> str:
    """``2 tensor × 3 pipeline parallel = ``; nothing for an engine of tensor parallel ranks alone."""
    sizes = {
        "tensor": rollout.tensor_model_parallel_size,
        "pipeline": rollout.pipeline_model_parallel_size,
        "data": rollout.data_parallel_size,
    }
    several = [f"{size} {name}" for name, size in sizes.items() if size > 1]
    return f"{' × '.join(several)} parallel = " if rollout.gpus_per_engine > sizes["tensor"] else ""


def _check_batches(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    if not config.data.train_files:
        yield ConfigError("data.train_files", "must name at least one parquet file")
    batch, data = config.data.train_batch_size, config.data
    yield from _check_mini_batch("actor.ppo_mini_batch_size", config.actor.ppo_mini_batch_size, batch)
    if parts.value_loss is not None and config.critic.ppo_mini_batch_size is not None:
        yield from _check_mini_batch("critic.ppo_mini_batch_size", config.critic.ppo_mini_batch_size, batch)
    if data.gen_batch_size is not None and parts.batch_filter is None:
        yield ConfigError("data.gen_batch_size", "has an effect with algorithm.filter_groups.enable only")
    if config.trainer.critic_warmup > 0 and parts.value_loss is None:
        yield ConfigError(
            "trainer.critic_warmup",
            f"{config.trainer.critic_warmup} steps would update nothing: advantage estimator "
            f"'{parts.adv_estimator.entry.name}' has no critic",
        )


def _check_kl(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    if parts.kl_loss is not None and config.actor.kl_loss_coef == 0:
        yield ConfigError("actor.kl_loss_coef", "is 0, so actor.use_kl_loss would run the reference model for nothing")


def _check_zero_advantage(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    if config.actor.zero_advantage != "skip":
        return
    loss, why = parts.policy_loss.entry, ""
    if not loss.facts.zero_at_zero_advantage:
        why = f"the policy loss '{loss.name}' gives a gradient to rows without an advantage"
    elif parts.kl_loss is not None:
        why = "actor.use_kl_loss gives a gradient to rows without an advantage"
    elif config.actor.entropy_coeff:
        why = "actor.entropy_coeff gives a gradient to rows without an advantage"
    if why:
        yield ConfigError("actor.zero_advantage", f"skip would change the gradient: {why}; use train")


def _check_rollout_correction(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    correction = config.algorithm.rollout_correction
    if correction.bypass_mode and "sum_pi_squared" in parts.adv_estimator.entry.needs:
        yield ConfigError(
            "algorithm.rollout_correction.bypass_mode",
            f"skips the forward pass that advantage estimator '{parts.adv_estimator.entry.name}' needs",
        )


def _check_mini_batch(key: str, mini: int, batch: int) -> Iterator[RequestError]:
    if batch < mini:
        yield ConfigError(
            key,
            f"{mini} prompts are more than data.train_batch_size, the {batch} prompts of a whole step; "
            f"it must be {batch} or a divisor of it",
        )
    elif batch % mini:
        yield ConfigError(
            "data.train_batch_size",
            f"{batch} prompts do not divide into mini-batches of {key}={mini} "
            f"({batch} = {batch // mini} × {mini} + {batch % mini}); {batch - batch % mini} would, "
            f"and so would {batch - batch % mini + mini}",
        )


def _check_staleness(config: TrainConfig) -> Iterator[RequestError]:
    """Generation during training keeps its memory and weights; a step waits for no more groups than may be open."""
    trainer, size = config.trainer, config.data.train_batch_size
    if not trainer.max_staleness:
        return
    ahead = trainer.max_staleness * size
    if trainer.batch_order in (None, "windowed") and (trainer.batch_window or size) > ahead:
        yield ConfigError(
            "trainer.batch_window",
            f"is {trainer.batch_window} groups beyond a batch, and trainer.max_staleness × data.train_batch_size = "
            f"{trainer.max_staleness} × {size} = {ahead} may be open: lower it, or raise trainer.max_staleness",
        )
    for key, value in (
        ("rollout.free_cache_engine", config.rollout.free_cache_engine),
        ("trainer.offload_while_generating", config.trainer.offload_while_generating),
    ):
        if value:
            yield ConfigError(
                key,
                f"cannot be with trainer.max_staleness={config.trainer.max_staleness}: both work at once",
            )


def _check_overlap(config: TrainConfig, parts: Parts) -> Iterator[RequestError]:
    """The reference reads while others generate: it has its memory, and the controller the groups of one step."""
    if config.ref.overlap_parts == 1:
        return
    rollout, trainer = config.rollout, config.trainer
    shares_gpu = config.actor.device != "cpu" and not rollout.n_gpus_per_node
    for wrong, why in (
        (not parts.needs_ref_log_probs, "no part of the run reads the reference's log-probs of the sampled tokens"),
        (
            hold_reference(config, parts.strategy.entry.facts),
            "the reference is the policy without its adapters, which an engine that starts again needs; ref.strategy "
            "gives it weights of its own",
        ),
        (
            shares_gpu and rollout.free_cache_engine is not False,
            "the reference needs memory while the engine has its own: set rollout.free_cache_engine=false and "
            "rollout.options.gpu_memory_utilization, or give engines GPUs of their own (rollout.n_gpus_per_node)",
        ),
        (trainer.offload_while_generating, "trainer.offload_while_generating takes the reference from the GPU"),
        (trainer.max_staleness > 0, "with trainer.max_staleness the groups of a step are not known before it begins"),
        (
            trainer.batch_order == "first_finished",
            "with trainer.batch_order=first_finished the groups of a step are not known before its end",
        ),
        (rollout.num_workers > 0, "with rollout.num_workers the rows are in other processes"),
    ):
        if wrong:
            yield ConfigError("ref.overlap_parts", f"cannot be above 1: {why}")


def check_sampling(config: TrainConfig) -> None:
    """Raise ConfigError for the first broken rule of sampling, for commands without training."""
    for violation in _check_sampling(config):
        raise violation


def _check_sampling(config: TrainConfig) -> Iterator[RequestError]:
    rollout, validation = config.rollout, config.rollout.val_kwargs
    for key, top_k in (("rollout.top_k", rollout.top_k), ("rollout.val_kwargs.top_k", validation.top_k)):
        if top_k == 0:
            yield ConfigError(key, "must be at least 1, or -1 for all tokens, not 0")
    if validation.n > 1 and not validation.do_sample:
        yield ConfigError(
            "rollout.val_kwargs.n",
            f"{validation.n} greedy responses to one prompt are all the same: set it to 1, "
            "or rollout.val_kwargs.do_sample to true",
        )
    if rollout.max_concurrent_requests is not None and rollout.max_concurrent_requests < rollout.n:
        yield ConfigError(
            "rollout.max_concurrent_requests",
            f"is {rollout.max_concurrent_requests}, less than the rollout.n = {rollout.n} responses to one prompt",
        )


def _check_optimizer(config: TrainConfig) -> Iterator[RequestError]:
    for role, betas in (("actor", config.actor.optim.betas), ("critic", config.critic.optim.betas)):
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            yield ConfigError(f"{role}.optim.betas", f"must be two numbers of at least 0 and less than 1, not {betas}")


def _check_schedule(config: TrainConfig) -> Iterator[RequestError]:
    trainer = config.trainer
    for name in ("test_freq", "save_freq", "log_rollouts_freq"):
        if getattr(trainer, name) == 0:
            yield ConfigError(f"trainer.{name}", "must be at least 1, or -1, not 0")
    if trainer.test_freq > 0 and not config.data.val_files:
        yield ConfigError(
            "trainer.test_freq",
            f"asks for an evaluation every {trainer.test_freq} steps, but data.val_files names no file",
        )
