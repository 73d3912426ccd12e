"""Engines, their options, and sampling in training and evaluation."""

from typing import Any

from corerl_verl.conversion import Conversion, is_number, is_true, shown

_ENGINES = {"vllm": "vllm", "sglang": "sglang", "hf": "hf", "sglang_async": "sglang", "vllm_async": "vllm"}
_COMMON = ("gpu_memory_utilization", "max_model_len")
_ENGINE_ARGS = {
    "vllm": {
        "max_num_seqs": "max_num_seqs",
        "max_num_batched_tokens": "max_num_batched_tokens",
        "enable_chunked_prefill": "enable_chunked_prefill",
        "enable_prefix_caching": "enable_prefix_caching",
        "scheduling_policy": "scheduling_policy",
        "cudagraph_capture_sizes": "cudagraph_capture_sizes",
    },
    "sglang": {"max_num_seqs": "max_running_requests"},
    "hf": {},
}
"""engine -> verl's key below ``rollout`` -> the engine's own argument"""
_OF_VLLM = (*_ENGINE_ARGS["vllm"], "swap_space")
_OWN_OPTIONS = {
    "vllm": ("enforce_eager", *_COMMON),
    "sglang": ("attention_backend", "disable_cuda_graph"),
    "hf": (),
}
_SET_BY_CORERL = {
    "vllm": (
        *("model", "dtype", "logprobs_mode", "skip_tokenizer_init", "enable_sleep_mode", "model_impl", "load_format"),
        *("worker_extension_cls", "mm_processor_cache_gb", "disable_mm_preprocessor_cache", "mm_device_do_normalize"),
        *("enable_lora", "max_loras", "max_lora_rank", "lora_target_modules", "enable_mixed_moe_lora_format"),
        *("nnodes", "node_rank", "master_addr", "master_port", "enable_return_routed_experts"),
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "tp_size", "pp_size"),
    ),
    "sglang": (
        *("model_path", "dtype", "skip_tokenizer_init", "sampling_backend", "enable_memory_saver", "load_format"),
        *("mem_fraction_static", "context_length", "nnodes", "node_rank", "dist_init_addr", "tp_size", "pp_size"),
        *("enable_lora", "max_lora_rank", "lora_target_modules", "max_loras_per_batch", "enable_weights_cpu_backup"),
        *("enable_return_routed_experts", "dp_size"),
    ),
    "hf": (),
}
_OF_SERVERS = ("enable_auto_tool_choice", "tool_call_parser", "reasoning_parser", "chat_template", "served_model_name")
_QUANTIZED = "CoreRL's engines compute in the policy's dtype, or with rollout.options.quantization=fp8"
_LOAD_FORMATS = ("dummy", "auto", "safetensors")
_PARALLEL = ("pipeline_model_parallel_size", "data_parallel_size", "expert_parallel_size")
_SAMPLED = "verl samples an evaluation by its temperature and ignores do_sample; written as do_sample"


def engine(conversion: Conversion) -> None:
    """The engine's name and its options."""
    name = _name(conversion)
    _passed_through(conversion, name)
    for key, target in _ENGINE_ARGS[name].items():
        value = conversion.take(f"rollout.{key}")
        if value is not None:
            conversion.values[f"rollout.options.engine_args.{target}"] = value
    for key in _OF_VLLM:
        conversion.drop(f"rollout.{key}", f"verl's engine {name} does not read it either, or as a matter of speed")
    _eager(conversion, name)
    for key in _COMMON:
        value = conversion.take(f"rollout.{key}")
        if value is not None and name != "hf":
            conversion.values[f"rollout.options.{key}"] = value
    _load_format(conversion, name)
    for key in ("rollout.quantization", "rollout.quantization.weight_dtype"):
        if str(conversion.given.get(key)) == "fp8" and name != "hf":
            conversion.values["rollout.options.quantization"] = conversion.take(key)
    _parallel(conversion, name)
    images = conversion.take("rollout.limit_images")
    if images is not None and name == "vllm":
        conversion.values["rollout.options.engine_args.limit_mm_per_prompt"] = {"image": images}


def _name(conversion: Conversion) -> str:
    asked = conversion.take("rollout.name")
    name = str(asked if asked is not None else conversion.effective("rollout.name", "vllm"))
    if name not in _ENGINES:
        conversion.remark(
            f"rollout.name={name}", "CoreRL has the engines vllm, sglang and hf; written as vllm", "missing"
        )
        conversion.drop_section(
            f"rollout.engine_kwargs.{name}", f"options of {name}, which CoreRL does not have", "missing"
        )
    result = _ENGINES.get(name, "vllm")
    conversion.values["rollout.name"] = result
    if result == "hf" and (conversion.gpus or 0) > 1:
        conversion.remark("rollout.name=hf", "CoreRL's engine hf runs on one GPU for each worker")
    return result


def _passed_through(conversion: Conversion, name: str) -> None:
    """``engine_kwargs`` of the selected engine, as arguments of the engine itself."""
    whole = conversion.take(f"rollout.engine_kwargs.{name}", {})
    kwargs = (dict(whole) if isinstance(whole, dict) else {}) | conversion.take_section(f"rollout.engine_kwargs.{name}")
    for written, value in kwargs.items():
        argument, key = shown(f"rollout.engine_kwargs.{name}.{written}", value), written.replace("-", "_")
        if value is None:
            continue
        if key in ("quantization", "quantization_config"):
            if value == "fp8":
                conversion.values["rollout.options.quantization"] = "fp8"
            else:
                conversion.remark(argument, _QUANTIZED, "missing")
        elif key in _OF_SERVERS:
            conversion.remark(argument, "of verl's HTTP server; agents' calls are read by CoreRL", "harmless")
        elif key in _SET_BY_CORERL[name]:
            conversion.remark(argument, "CoreRL sets this argument of the engine itself", "harmless")
        elif key in _OWN_OPTIONS[name]:
            conversion.values[f"rollout.options.{key}"] = value
        else:
            conversion.values[f"rollout.options.engine_args.{key}"] = value
    for key in [key for key in conversion.given if key.startswith("rollout.engine_kwargs.")]:
        conversion.drop(key, f"of another engine than {name}")


def _eager(conversion: Conversion, name: str) -> None:
    eager = conversion.take("rollout.enforce_eager")
    if eager is None:
        return
    if name == "vllm":
        conversion.values["rollout.options.enforce_eager"] = eager
    elif name == "sglang" and is_true(eager):
        conversion.values.setdefault("rollout.options.disable_cuda_graph", True)


def _load_format(conversion: Conversion, name: str) -> None:
    """Engines get the trainer's weights before the first request, so the format is a matter of the start."""
    load_format = conversion.take("rollout.load_format")
    if load_format is None or name == "hf":
        return
    text = str(load_format)
    conversion.values["rollout.options.load_format"] = "dummy" if text.startswith("dummy") else "auto"
    if text.partition("_")[0] not in _LOAD_FORMATS:
        conversion.remark(
            shown("rollout.load_format", text), "written as auto: the engine reads what it finds", "harmless"
        )


def _parallel(conversion: Conversion, name: str) -> None:
    """verl's engine has tensor × data parallel GPUs; its expert parallel size is 1 or all of them."""
    if name == "hf":
        for key in _PARALLEL:
            conversion.drop(f"rollout.{key}", "an engine of hf has one GPU")
        return
    stages, parts, experts = (conversion.take(f"rollout.{key}", 1) for key in _PARALLEL)
    attention = "rollout.options.engine_args.enable_dp_attention"
    divides = conversion.values.pop(attention, False)
    if stages != 1:
        conversion.values["rollout.pipeline_model_parallel_size"] = stages
    if parts != 1 and (experts != 1 or divides):
        conversion.values["rollout.data_parallel_size"] = parts
    elif parts != 1:
        conversion.remark(
            f"rollout.data_parallel_size={parts}",
            "engines without expert parallelism divide the requests among themselves: as many run as fit",
            "harmless",
        )
    if experts != 1 and name == "sglang":
        conversion.values["rollout.options.engine_args.ep_size"] = experts
    elif experts != 1 and parts == 1:  # with data parallel ranks, CoreRL sets it
        conversion.values["rollout.options.engine_args.enable_expert_parallel"] = True


def sampling(conversion: Conversion) -> None:
    """Sampling in training and evaluation, with verl's rule of when an evaluation is greedy."""
    for key in ("rollout.top_k", "rollout.val_kwargs.top_k"):
        if conversion.given.get(key) == 0:
            conversion.given[key] = -1  # all tokens, in transformers
    if conversion.given.get("rollout.do_sample") is not None:
        if is_true(conversion.given["rollout.do_sample"]):
            conversion.drop("rollout.do_sample", "training always samples")
        else:
            conversion.drop("rollout.do_sample", "verl's training would be greedy, CoreRL's always samples", "changed")
    if is_number(conversion.given.get("rollout.temperature"), most=0):
        conversion.drop(
            "rollout.temperature", "verl's training would be greedy; CoreRL samples at temperature 1", "changed"
        )
    _validation(conversion)


def _validation(conversion: Conversion) -> None:
    prefix = "rollout.val_kwargs"
    temperature = conversion.effective(f"{prefix}.temperature", 0)
    asked = is_true(conversion.effective(f"{prefix}.do_sample", False))
    by_temperature = str(conversion.effective("rollout.mode")) == "async"
    sampled = by_temperature and is_number(temperature) and temperature > 0 if by_temperature else asked
    argument = shown(f"{prefix}.temperature", temperature)
    conversion.given.pop(f"{prefix}.do_sample", None)
    if sampled != asked:
        conversion.remark(f"{prefix}.do_sample={asked}, {argument}", f"{_SAMPLED}: {str(bool(sampled)).lower()}")
    if sampled:
        conversion.values[f"{prefix}.do_sample"] = True
        if is_number(temperature, most=0):
            conversion.given.pop(f"{prefix}.temperature", None)
            conversion.values[f"{prefix}.do_sample"] = False
        elif is_number(temperature):
            conversion.given[f"{prefix}.temperature"] = temperature
        return
    for name in ("temperature", "top_p", "top_k"):
        conversion.drop(f"{prefix}.{name}", "without effect on a greedy evaluation")
    number = conversion.effective(f"{prefix}.n", 1)
    if is_number(number) and number > 1:
        conversion.drop(
            f"{prefix}.n", f"verl's {number} greedy responses to a prompt are all the same; written as 1", "changed"
        )


def experts(conversion: Conversion) -> None:
    """Router replay: R3 replays the engine's choice of experts."""
    asked = is_true(conversion.take("rollout.enable_rollout_routing_replay", False))
    modes: list[Any] = [conversion.take(f"actor.{place}router_replay.mode", "disabled") for place in ("", "megatron.")]
    if asked or "R3" in modes:
        conversion.values["rollout.record"] = ["experts"]
    for mode in modes:
        if mode not in ("disabled", "R3"):
            conversion.remark(
                f"actor.router_replay.mode={mode}", "CoreRL replays the engine's experts alone (R3)", "missing"
            )
    for role in ("actor", "ref", "critic"):
        for place in ("", "megatron."):
            conversion.drop_section(f"{role}.{place}router_replay", "rollout.record=[experts] replays the experts")
