"""Devices, machines, trackers, frequencies, resuming, and trainings beside generation."""

from typing import Any

from corerl_verl.conversion import Conversion, is_number, is_true, shown

_TRACKERS = ("console", "tensorboard", "wandb", "swanlab", "mlflow", "clearml", "trackio", "vemlp_wandb")
_DTYPES = {
    **{"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16"},
    **{"float32": "fp32", "fp32": "fp32", "auto": "auto"},
}
_PARTS = ("model", "optimizer", "extra")
_ALL = 1_000_000
_LOGGED = (
    "trainer.log_val_generations",
    "trainer.val_generations_to_log_to_wandb",
    "val_generations_to_log_to_wandb",
)
_RAY_SOURCES = ("ray_init", "ray_kwargs")


def run(conversion: Conversion) -> None:
    """Runtime, device, dtype."""
    conversion.values["runtime.name"] = "ray"
    nodes = conversion.effective("trainer.nnodes", 1)
    if not is_number(nodes, most=1):
        conversion.values["runtime.options.address"] = "auto"
        conversion.remark(
            shown("trainer.nnodes", nodes),
            "joins the Ray cluster of this machine: `ray start` on each first, as for verl",
        )
    device = conversion.take("trainer.device")
    if device is not None and device not in ("cuda", "cpu"):
        conversion.remark(
            f"trainer.device={device}", "CoreRL trains on CUDA GPUs and CPUs; written for GPUs", "missing"
        )
        device = None
    if device is not None:
        conversion.values["actor.device"] = device
    dtype = conversion.take("rollout.dtype")
    if dtype is not None and str(dtype) not in _DTYPES:
        conversion.remark(f"rollout.dtype={dtype}", "CoreRL computes in bf16, fp16 or fp32; written as bf16", "missing")
    if dtype is not None:
        conversion.values["model.dtype"] = _DTYPES.get(str(dtype), "bf16")
    if conversion.values.get("model.dtype") == "fp16" and conversion.effective.engine == "megatron":
        conversion.values["model.dtype"] = "bf16"
        conversion.remark(
            f"rollout.dtype={dtype}", "CoreRL's megatron scales no loss, which fp16 needs: written as bf16", "missing"
        )
    if conversion.take("ref.model.path") is not None:
        conversion.values["ref.path"] = conversion.effective("ref.model.path")
    for source in _RAY_SOURCES:
        conversion.drop_section(source, "runtime.options has Ray's options (corerl plugins show ray)")


def frequencies(conversion: Conversion) -> None:
    """A frequency of at most 0, false or null is never."""
    for name in ("test_freq", "save_freq"):
        key = f"trainer.{name}"
        value = conversion.given.get(key)
        if key in conversion.given and (value is None or value is False or is_number(value, most=0)):
            conversion.given[key] = -1
    _logged(conversion)
    for key in ("data.val_max_samples", "data.train_max_samples"):
        if is_number(conversion.given.get(key), most=0):
            conversion.given.pop(key)
    limit = conversion.given.get("data.train_max_samples")
    if limit is not None and is_true(conversion.effective("data.shuffle", True)):
        conversion.remark(
            shown("data.train_max_samples", limit), "verl draws these rows at random, CoreRL takes the first ones"
        )
    if is_number(conversion.effective("trainer.total_training_steps"), most=0):
        conversion.given.pop("trainer.total_training_steps", None)


def _logged(conversion: Conversion) -> None:
    """A negative number of responses is, in verl, the end of a slice: -1 is all but one."""
    for key in _LOGGED:
        number: Any = conversion.given.get(key)
        if is_number(number, most=-1):
            conversion.drop(key, f"verl logs all responses but {-number}; written as {_ALL}: all", "changed")
            conversion.values["trainer.log_val_generations"] = _ALL


def resuming(conversion: Conversion) -> None:
    """``resume_mode`` and ``resume_from_path``."""
    mode = conversion.take("trainer.resume_mode", "auto")
    path = conversion.take("trainer.resume_from_path")
    if mode == "resume_path" and isinstance(path, str):
        conversion.values["trainer.resume_mode"] = path
        conversion.remark(
            shown("trainer.resume_from_path", path),
            "must be a run or checkpoint of CoreRL; one of verl cannot be resumed",
        )
    elif mode == "disable":
        conversion.values["trainer.resume_mode"] = "disable"
    elif mode not in ("auto", "resume_path"):
        conversion.remark(shown("trainer.resume_mode", mode), "verl has auto, disable and resume_path; written as auto")
    if mode != "resume_path" and path not in (None, False):
        conversion.remark(
            shown("trainer.resume_from_path", path), "verl reads it with resume_mode=resume_path only", "harmless"
        )


def trackers(conversion: Conversion) -> None:
    """``trainer.logger``."""
    asked: Any = conversion.take("trainer.logger", conversion.effective("trainer.logger", ["console"]))
    names = [str(name) for name in (asked if isinstance(asked, list) else [asked])]
    for name in names:
        if name not in _TRACKERS:
            reason = "metrics.jsonl of the run has every metric" if name == "file" else "CoreRL has no such tracker"
            conversion.remark(f"trainer.logger={name}", reason, "harmless" if name == "file" else "missing")
    loggers: list[Any] = [name for name in names if name in _TRACKERS] or ["console"]
    if is_true(conversion.given.get("rollout.prometheus.enable")):
        loggers.append("prometheus")
        conversion.drop(
            "rollout.prometheus.enable",
            "written as the tracker prometheus: metrics of steps, on a port of the run; not vLLM's and SGLang's own",
            "changed",
        )
    conversion.drop_section("rollout.prometheus", "the tracker prometheus has a port that your server scrapes")
    conversion.values["tracking.loggers"] = loggers


def checkpoints(conversion: Conversion) -> None:
    """The number of checkpoints to keep, one for actor and critic, and their contents."""
    kept = [conversion.take(f"trainer.max_{role}_ckpt_to_keep") for role in ("actor", "critic")]
    numbers = [number for number in kept if is_number(number) and number >= 1]
    if numbers:
        conversion.values["trainer.max_ckpt_to_keep"] = max(numbers)
    if len(numbers) == 2 and numbers[0] != numbers[1]:
        conversion.remark(
            f"trainer.max_actor_ckpt_to_keep={numbers[0]}, trainer.max_critic_ckpt_to_keep={numbers[1]}",
            f"CoreRL keeps actor and critic together: {max(numbers)}",
        )
    saves: Any = conversion.take("actor.checkpoint.async_save")
    if saves is not None:
        conversion.values["trainer.async_save"] = is_true(saves)
    for role in ("actor", "critic"):
        _contents(conversion, role)


def _contents(conversion: Conversion, role: str) -> None:
    prefix = f"{role}.checkpoint"
    names = _names(conversion.given.get(f"{prefix}.save_contents", conversion.given.get(f"{prefix}.contents")))
    if role == "actor" and any("hf_model" in name for name in names):
        conversion.values["trainer.save_huggingface"] = "always"
    reason, without = (
        "checkpoints hold all that a run needs to go on, and trainer.save_huggingface a model folder",
        set(),
    )
    if names:
        without = {*_PARTS} - {*names}
    _loaded(conversion, role, f"{prefix}.load_contents", names)
    for key in [key for key in conversion.given if key.startswith(f"{prefix}.")]:
        if key.endswith("contents") and without:
            _without(conversion, role, key, without)
        else:
            conversion.drop(key, reason)


def _loaded(conversion: Conversion, role: str, key: str, saved: list[str]) -> None:
    """Contents that a resumed run takes: by default those that are saved; written unless they are all."""
    names = _names(conversion.given.get(key)) or [part for part in _PARTS if saved and part in saved]
    parts = [part for part in _PARTS if part in names]
    if key not in conversion.given and "extra" in parts:
        return  # save_optimizer says the rest
    if not names or len(parts) == len(_PARTS) or (role == "critic" and not conversion.has_critic):
        conversion.take(key)
    elif not parts:
        conversion.drop(key, "a run resumes with model, optimizer or extra of a checkpoint", "missing")
    else:
        conversion.take(key)
        conversion.values[f"{role}.strategy.load_contents"] = parts


def _names(contents: Any) -> list[str]:
    """Of a list of contents, or of one as text."""
    names = contents if isinstance(contents, list) else [contents] if isinstance(contents, str) else []
    return [part.strip(" '\"") for name in names for part in str(name).strip("[]").split(",")]


def _without(conversion: Conversion, role: str, key: str, without: set[str]) -> None:
    """Contents that are left out: the optimizer is an option; a model without optimizer resumes with a new one."""
    if "optimizer" in without and (role == "actor" or conversion.has_critic):
        conversion.values[f"{role}.strategy.save_optimizer"] = False
        without = without - {"optimizer"}
    always = without - {"extra"}  # random states are a few kilobytes
    if always:
        conversion.drop(key, f"CoreRL's checkpoints always hold {' and '.join(sorted(always))}", "missing")
    else:
        conversion.drop(key, "written as save_optimizer; CoreRL's checkpoints always hold random states", "harmless")


def stale(conversion: Conversion) -> None:
    """Trainers that generate during training: one step ahead, or fully asynchronous."""
    mode = str(conversion.effective("trainer.v1.trainer_mode", "sync"))
    of_v1 = mode != "sync" and conversion.trainer_v1
    fully = "fully_async" in conversion.module
    if fully:
        _fully_asynchronous(conversion)
    if of_v1 or fully or "one_step" in conversion.module:
        ahead = [f"trainer.v1.{mode}.{name}" for name in ("staleness_threshold", "num_warmup_batches")] if of_v1 else []
        limits = [conversion.effective(key) for key in (*ahead, "async_training.staleness_threshold")]
        threshold = next((limit for limit in limits if limit is not None), 0)
        steps = max(1, int(-(-threshold // 1))) if is_number(threshold) else 1
        conversion.values |= {"trainer.max_staleness": steps, "rollout.free_cache_engine": False}
        conversion.remark(
            shown("trainer.v1.trainer_mode", conversion.given.pop("trainer.v1.trainer_mode", mode))
            if of_v1
            else conversion.module,
            f"written as trainer.max_staleness={steps}: a response is trained at most {steps} updates of weights after "
            "those that began it; verl's queues, thresholds and partial rollouts work otherwise",
        )
        conversion.drop("rollout.free_cache_engine", "engines keep their memory during training")
        _own_pool(conversion)
    else:
        for key in ("rollout.nnodes", "rollout.n_gpus_per_node"):
            conversion.drop(key, "engines share the GPUs of training")
    conversion.drop_section("async_training", "trainer.max_staleness bounds the age of weights")
    if conversion.given.get("trainer.v1.sampler.custom_sampler.path") is not None:
        reason = "a sampler of verl's replay buffer is a batch filter or trainer.batch_order here (docs/plugins.md)"
        conversion.drop_section("trainer.v1.sampler.custom_sampler", reason, "missing")
    conversion.drop_section("trainer.v1", "a matter of verl's trainer")
    only = is_true(conversion.given.get("trainer.val_only"))
    reason = "`corerl generate` and `corerl eval` evaluate without training" if only else "off, as in CoreRL"
    conversion.drop("trainer.val_only", reason, "missing" if only else "harmless")


def _own_pool(conversion: Conversion) -> None:
    """Without GPUs of their own, engines beside training would have none."""
    nodes, each = conversion.effective("rollout.nnodes", 0), conversion.effective("rollout.n_gpus_per_node", 0)
    if not (is_number(nodes) and nodes > 0):
        conversion.drop("rollout.nnodes", "engines share the GPUs of training")
        conversion.drop("rollout.n_gpus_per_node", "engines share the GPUs of training")
    elif is_number(each):
        conversion.values["rollout.n_gpus_per_node"] = each


def _fully_asynchronous(conversion: Conversion) -> None:
    """A step lies between two exchanges of weights: ``trigger_parameter_sync_step`` updates of ``require_batches``."""
    mini = conversion.effective("actor.ppo_mini_batch_size")
    batches = conversion.effective("async_training.require_batches", 1)
    updates = conversion.effective("async_training.trigger_parameter_sync_step", 4)
    argument = shown("async_training.trigger_parameter_sync_step", updates)
    for key in ("data.train_batch_size", "data.gen_batch_size"):
        conversion.drop(key, "verl's fully asynchronous trainer counts mini-batches")
    if is_number(mini) and is_number(batches) and is_number(updates):
        batch = int(mini * batches * updates)
        conversion.values["data.train_batch_size"] = batch
        conversion.remark(argument, f"written as a step of {batch} prompts, after which engines get new weights")
        total = conversion.take("rollout.total_rollout_steps")
        if is_number(total):
            conversion.values["trainer.total_training_steps"] = max(1, int(total) // batch)
    for name in ("total_epochs", "test_freq"):
        value = conversion.take(f"rollout.{name}")
        if value is not None:
            conversion.put(f"trainer.{name}", value)
