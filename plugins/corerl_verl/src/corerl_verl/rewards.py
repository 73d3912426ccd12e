"""verl's rewards: scorers with other defaults, reward functions, reward models, and the reward manager ``dapo``."""

from typing import Any

from corerl_verl.conversion import Conversion, is_number, is_true, shown

MATH_DAPO: dict[str, Any] = {"name": "math_dapo", "wrong_score": -1.0, "fallback_to_boxed": True}
"""verl's ``math_dapo``: 1 or -1, and a response without a line ``Answer:`` is judged by its last box"""

MATH_DAPO_SOURCES = ("aime*", "math", "math_dapo", "math_dapo_*")

_FUNCTIONS = ("custom_reward_function", "reward.custom_reward_function")
_MODELS = ("reward_model", "reward.reward_model")
_MANAGERS = ("reward_model.reward_manager", "reward.reward_manager.name", "reward_manager.name")
_KWARGS = ("reward_model.reward_kwargs", "reward.reward_kwargs")
_BUFFERS = ("reward_model.overlong_buffer", "custom_reward_function.overlong_buffer", "reward.overlong_buffer")
_SAME_HERE = {"naive": "parallel", "prime": "parallel", "gdpo": "parallel", "dapo": "parallel", "parallel": "parallel"}
_METRICS = {"reward": "score", "score": "score", "seq_reward": "score", "seq_final_reward": "score", "acc": "acc"}
_NO_OPTION = "CoreRL's reward model has no such option"
_PLACE = "verl's pool of {} GPUs has {} engines; written as one, of rollout.tensor_model_parallel_size GPUs"
_SHARED = (
    "verl's engine shares the GPUs of training, CoreRL's has its own: set reward.manager.gpus, or reward.manager.pool "
    "and runtime.options.pools"
)
_ASIDE = "a matter of memory and speed of the reward model's engine"
_POOL = "reward_model"
_PORT = 8100
"""of the server that a reward function asks"""
_PROGRAMS = {
    "vllm": ("vllm serve", "--tensor-parallel-size"),
    "sglang": ("python -m sglang.launch_server --model-path", "--tp-size"),
}
"""engine -> its program, and its flag of tensor parallel GPUs"""
_ASKS = (
    "start `{}` on GPUs of its own; the function gets its address as reward_router_address, and the model's tokenizer"
)
_OF_ENGINE = {
    **dict.fromkeys(("free_cache_engine", "skip_tokenizer_init", "load_format", "dtype", "disable_log_stats"), _ASIDE),
    **dict.fromkeys(("enforce_eager", "cudagraph_capture_sizes", "max_num_batched_tokens", "max_num_seqs"), _ASIDE),
    **dict.fromkeys(("enable_chunked_prefill", "enable_prefix_caching", "data_parallel_size", "name"), _ASIDE),
    **dict.fromkeys(("limit_images", "expert_parallel_size", "nnodes", "n_gpus_per_node"), _ASIDE),
    **dict.fromkeys(("use_dynamic_bsz", "forward_max_token_len_per_gpu", "max_length", "strategy"), _ASIDE),
    **dict.fromkeys(("use_remove_padding", "fsdp_config.param_offload", "use_fused_kernels", "use_shm"), _ASIDE),
    "input_tokenizer": "the reward model reads the chat by its own template",
    "tokenizer_path": "the tokenizer lies in the model's folder",
}
"""options of verl's reward model on which its scores do not depend"""
_SANDBOXES = ("reward.sandbox_fusion", "reward_model.sandbox_fusion", "sandbox_fusion")
_OWN_SANDBOX = (
    "programs of responses run in the scorer code's own sandbox, with its own limits (docs/rewards-isolation.md)"
)
_ENGINES = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static"}
"""engine -> its name of the share of GPU memory"""


def rewards(conversion: Conversion) -> None:
    """The function, model or scorers that score, and the manager."""
    _sandboxes(conversion)
    function = _function(conversion)
    model = _reward_model(conversion, function is not None)
    if function is not None and model is not None:
        function, model = {**function, **model}, None
    names = [(key, str(name)) for key in _MANAGERS if (name := conversion.take(key)) is not None]
    key, name = names[-1] if names else ("", "naive")
    buffer, longest = _buffer(conversion)
    if model is not None:
        conversion.values |= model
        return
    if name == "batch" and function is not None:
        conversion.values["reward.manager"] = {**function, "name": "verl_batch"}
        return
    if function is not None:
        conversion.values["reward.scorer"] = function
    else:
        conversion.values["reward.scorers"] = {source: dict(MATH_DAPO) for source in MATH_DAPO_SOURCES}
    if name == "dapo" and is_true(buffer.get("enable")):
        _dapo(conversion, buffer, longest)
        return
    if name not in _SAME_HERE and name != "batch":
        conversion.remark(f"{key}={name}", "CoreRL has no such reward manager; written as parallel", "missing")
    if names:
        conversion.values["reward.manager"] = _SAME_HERE.get(name, "parallel")


def _sandboxes(conversion: Conversion) -> None:
    """verl's service for programs, by default none."""
    for section in _SANDBOXES:
        asked = conversion.given.get(f"{section}.url") is not None
        conversion.drop_section(section, _OWN_SANDBOX, "changed" if asked else "harmless")


def _function(conversion: Conversion) -> dict[str, Any] | None:
    """Options of the scorer ``verl``: file, function and fixed arguments."""
    found: dict[str, Any] | None = None
    for section in _FUNCTIONS:
        path = conversion.take(f"{section}.path")
        name = conversion.take(f"{section}.name", "compute_score")
        kwargs = dict(conversion.take(f"{section}.reward_kwargs", {}))
        kwargs |= conversion.take_section(f"{section}.reward_kwargs")
        if path is not None:
            found = {"name": "verl", "path": path, "function": name}
            if kwargs:
                found["kwargs"] = _nested(kwargs)
    return found


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, last = key.split(".")
        place = result
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return result


def _reward_model(conversion: Conversion, asked_by_function: bool) -> dict[str, Any] | None:
    """The reward manager ``model`` for an enabled reward model; its section is consumed.

    Args:
        asked_by_function: a function scores, and may ask the model through verl's router.
    """
    _renamed(conversion)
    for section in _MODELS:
        enabled, path = conversion.take(f"{section}.enable"), None
        for key in (f"{section}.model.path", f"{section}.model_path"):
            path = conversion.take(key, path)
        size = conversion.take(f"{section}.micro_batch_size_per_gpu", conversion.take(f"{section}.micro_batch_size"))
        trusted = conversion.take(f"{section}.model.trust_remote_code")
        kept = {key for key in conversion.given if key.startswith((*_KWARGS, *_MANAGERS, *_BUFFERS, "reward.custom"))}
        rest = [key for key in conversion.given if key.startswith(f"{section}.") and key not in kept]
        if not is_true(enabled):
            for key in rest:
                conversion.drop(key, "the command has no reward model")
            continue
        if asked_by_function:
            return _served(conversion, section, path, trusted, rest)
        engine = _engine(conversion, section)
        for key in rest:
            name = key.removeprefix(f"{section}.").removeprefix("rollout.").removeprefix("model.")
            conversion.drop(key, _OF_ENGINE.get(name, _NO_OPTION), "harmless" if name in _OF_ENGINE else "missing")
        values: dict[str, Any] = {"reward.manager": "model", "reward.manager.path": path}
        if is_number(size):
            values["reward.manager.batch_size"] = size
        if trusted:
            values["reward.manager.trust_remote_code"] = True
        if engine is not None:
            return values | engine
        conversion.remark(
            shown(f"{section}.enable", True),
            "verl's reward model is sharded; CoreRL's is a classification model in the controller's process, or in an "
            "engine with reward.manager.engine=vllm",
        )
        return values
    return None


def _renamed(conversion: Conversion) -> None:
    """verl's development versions between 0.6 and 0.7 had ``inference`` for ``rollout``."""
    for section in _MODELS:
        for name, value in conversion.take_section(f"{section}.inference").items():
            if (key := f"{section}.rollout.{name}") not in conversion.given:
                conversion.put(key, value)
        for name in ("use_reward_loop", "num_workers"):
            conversion.drop(f"{section}.{name}", "responses are always scored during generation")


def _served(conversion: Conversion, section: str, path: Any, trusted: Any, rest: list[str]) -> dict[str, Any]:
    """A function that asks the model: the scorer ``verl`` passes the address of a server, which the user starts."""
    rollout = f"{section}.rollout"
    name = str(conversion.effective(f"{rollout}.name", "vllm"))
    size = conversion.effective(f"{rollout}.tensor_model_parallel_size", 1)
    program, tensor = _PROGRAMS.get(name, _PROGRAMS["vllm"])
    command = f"{program} {path} {tensor} {size} --port {_PORT}" + (" --trust-remote-code" if is_true(trusted) else "")
    options = [shown(key, conversion.take(key)) for key in rest]
    arguments = [shown(f"{section}.enable", True), f"{section}.model_path={path}", *options]
    conversion.remark(", ".join(arguments), _ASKS.format(command))
    return {"router": f"127.0.0.1:{_PORT}", "reward_model": path}


def _engine(conversion: Conversion, section: str) -> dict[str, Any] | None:
    """The engine of verl since 0.7, with its GPUs if it has a pool of its own."""
    rollout = f"{section}.rollout"
    name = conversion.take(f"{rollout}.name")
    if name is None and any(key.startswith(f"{rollout}.") for key in conversion.given):
        name = conversion.effective("rollout.name", "vllm")
    if str(name) not in _ENGINES:
        return None
    values: dict[str, Any] = {"reward.manager.engine": name}
    lengths = [conversion.effective(f"{rollout}.{each}") for each in ("prompt_length", "response_length")]
    if all(map(is_number, lengths)):
        values["reward.manager.max_length"] = sum(lengths)
    memory = conversion.effective(f"{rollout}.gpu_memory_utilization")
    if is_number(memory):
        values[f"reward.manager.engine_args.{_ENGINES[str(name)]}"] = memory
    size = conversion.effective(f"{rollout}.tensor_model_parallel_size", 1)
    if not is_true(conversion.effective(f"{section}.enable_resource_pool")):
        conversion.remark(shown(f"{rollout}.name", name), _SHARED)
    if is_true(conversion.effective(f"{section}.enable_resource_pool")) and is_number(size):
        values |= {"reward.manager.pool": _POOL, f"runtime.options.pools.{_POOL}": size}
        nodes, each = (conversion.effective(f"{section}.{name}", 1) for name in ("nnodes", "n_gpus_per_node"))
        if is_number(nodes) and is_number(each) and nodes * each > size > 0:
            place = _PLACE.format(nodes * each, nodes * each // size)
            conversion.remark(shown(f"{section}.enable_resource_pool", True), place)
    taken = ("prompt_length", "response_length", "gpu_memory_utilization", "tensor_model_parallel_size")
    for key in (*(f"rollout.{each}" for each in taken), "enable_resource_pool", "n_gpus_per_node", "nnodes"):
        conversion.given.pop(f"{section}.{key}", None)
    return values


def _buffer(conversion: Conversion) -> tuple[dict[str, Any], Any]:
    """The overlong buffer and the largest length, from verl's places of several versions."""
    buffer: dict[str, Any] = {}
    for section in (*_BUFFERS, *(f"{kwargs}.overlong_buffer_cfg" for kwargs in _KWARGS)):
        whole = conversion.take(section)
        buffer |= whole if isinstance(whole, dict) else {}
        buffer |= conversion.take_section(section)
    longest = [value for kwargs in _KWARGS if (value := conversion.take(f"{kwargs}.max_resp_len")) is not None]
    for kwargs in _KWARGS:
        conversion.drop_section(kwargs, "CoreRL's reward manager has no such option", "missing")
    return buffer, longest[-1] if longest else None


def _dapo(conversion: Conversion, buffer: dict[str, Any], longest: Any) -> None:
    """verl penalises ``min(-exceed / len · factor, 0)``; beyond the largest length its penalty grows."""
    conversion.values["reward.manager"] = "dapo"
    options = {
        "overlong_buffer_len": buffer.get("len"),
        "overlong_penalty_factor": buffer.get("penalty_factor"),
        "max_resp_len": longest,
    }
    conversion.values |= {f"reward.manager.{name}": value for name, value in options.items() if value is not None}
    limit = conversion.effective("data.max_response_length")
    if is_number(longest) and is_number(limit) and longest < limit:
        conversion.remark(
            f"max_resp_len={longest}",
            "verl's penalty grows beyond it, up to data.max_response_length; CoreRL's stays at the penalty factor",
        )


def dynamic_sampling(conversion: Conversion) -> None:
    """Filter, metric and limit: verl's limit of 0 is none."""
    section = "algorithm.filter_groups"
    enabled = is_true(conversion.given.get(f"{section}.enable"))
    metric, limit = conversion.take(f"{section}.metric"), conversion.take(f"{section}.max_num_gen_batches")
    conversion.drop(f"{section}.max_inflight_gen_batches", "a matter of speed")
    if not enabled:
        for name, value in (("metric", metric), ("max_num_gen_batches", limit)):
            if value is not None:
                conversion.remark(shown(f"{section}.{name}", value), "without effect: the filter is off", "harmless")
        return
    if metric is not None:
        conversion.values[f"{section}.filter.metric"] = _METRICS.get(str(metric), metric)
    unlimited = limit is None or is_number(limit, most=0)
    conversion.values[f"{section}.max_num_gen_batches"] = NO_LIMIT if unlimited else limit
    if conversion.module.endswith("trainer.main_ppo") and float(conversion.effective.version) < 0.9:
        conversion.remark(
            f"{section}.enable=True",
            "verl.trainer.main_ppo before 0.9 filters no groups, its recipe of DAPO does; written",
        )


NO_LIMIT = 1_000_000
"""generated batches of a step"""
