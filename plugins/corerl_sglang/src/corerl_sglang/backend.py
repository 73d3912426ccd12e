"""Rollout backend ``sglang``: the side in the trainer's process. It imports no SGLang."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import corerl_sglang_engine
from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.errors import ConfigError, RequestError
from corerl.models import compute_dtype
from corerl_engines import nodes, quantization
from corerl_engines.adapters import described
from corerl_engines.backend import FLOAT32_VARIABLES, EngineBackend, model_arguments
from corerl_engines.experts import has_experts, recorded_experts
from corerl_engines.images import reads_images
from corerl_engines.options import check_engine_args
from corerl_engines.process import EngineKind
from corerl_sglang.options import TESTED, SglangOptions
from corerl_sglang_engine.requests import KEEPS, UNUSED_POSITIONS
from corerl_torch.expert_adapters import EXPERTS
from corerl_torch.routers import COLUMN

KIND = EngineKind("sglang", "SGLang", Path(corerl_sglang_engine.__file__).parent, "SGLANG_HOST_IP")

LARGEST_FRACTION = 0.95

NEEDED = {("k_proj", "q_proj", "v_proj"): ("q_proj", "v_proj"), ("up_proj", "gate_proj"): ("gate_proj", "up_proj")}
"""layers that SGLang joins -> those of them that have an adapter if any of them has one"""

LARGE_DEVICE = 60 * 2**30
"""bytes of memory from which batches of up to 512 are recorded as CUDA graphs. SGLang itself does so from this size on
for a model on four GPUs; with fewer GPUs it stops at 256, and larger batches, as in rollouts, take more than twice as
long."""

WITHOUT_WINDOWS = ("mistral", "phi3")
"""model types that SGLang's module ``llama`` computes, which has no sliding windows"""

PATCH = 14
"""pixels of a patch's side in qwen2_5_vl; SGLang takes rows of another size for outputs of the tower"""


class SglangBackend(EngineBackend):
    """See :class:`corerl_engines.backend.EngineBackend`."""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, device: str, options: SglangOptions) -> None:
        """Start the engine.

        Raises:
            RequestError: the device is the CPU; SGLang has no kernels for it.
            ConfigError: no such interpreter, an engine argument with a key of its own, sizes that do not divide,
                quantised experts, or a sliding window that SGLang does not compute.
            RunError: SGLang is missing or of an untested version, or the engine did not start.
        """
        if device != "cuda":
            raise RequestError("rollout.name: sglang needs a CUDA device: set actor.device=cuda, or use hf or vllm")
        quantization.check_quantization(options, model, device)
        adapter = described(model, rollout, options)
        arguments = engine_arguments(model, rollout, options) | adapter_arguments(adapter)
        settings = {"engine_args": arguments, "experts": recorded_experts(model, rollout), "adapter": adapter}
        keeps = {KEEPS: "1"} if "kept_tokens" in rollout.record else {}
        environment = {**engine_environment(model, options), **keeps}
        super().__init__(KIND, TESTED, model, rollout, device, options, environment, settings)
        try:
            if options.quantization != "none" and has_experts(self._expected.config):
                raise ConfigError(
                    quantization.KEY, "fp8 of experts cannot be loaded again by SGLang: use rollout.name=vllm"
                )
            check_window(self._expected.config, options.max_model_len)
            check_patches(self._expected.config)
        except ConfigError:
            self.close()
            raise


def engine_arguments(model: ModelConfig, rollout: RolloutConfig, options: SglangOptions) -> dict[str, Any]:
    """Arguments of SGLang's ServerArgs.

    Raises:
        ConfigError: ``engine_args`` sets an argument that has a key of its own.
    """
    check_engine_args(options)
    dtype = compute_dtype(model, "cuda")
    dummy = "dummy" in (model.load_format, options.load_format)
    arguments: dict[str, Any] = {
        "model_path": model_arguments(model)[0],
        "dtype": str(dtype).removeprefix("torch."),
        "trust_remote_code": model.trust_remote_code,
        "load_format": "dummy" if dummy else "auto",
        "skip_tokenizer_init": True,
        "sampling_backend": "pytorch",  # the only one that uses the seed of each request
        "sampling_defaults": "openai",
        "enable_memory_saver": True,
        "mem_fraction_static": memory_fraction(options.gpu_memory_utilization),
        "tp_size": rollout.tensor_model_parallel_size * rollout.data_parallel_size,
        "pp_size": rollout.pipeline_model_parallel_size,
        "disable_cuda_graph": options.disable_cuda_graph,
        "log_level": "warning",
    }
    if nodes.here.others:
        arguments["disable_custom_all_reduce"] = True  # for GPUs that all processes of the engine see
    if rollout.pipeline_model_parallel_size > 1:
        arguments["disable_overlap_schedule"] = True  # SGLang has none for stages
    if rollout.data_parallel_size > 1:
        arguments |= {"dp_size": rollout.data_parallel_size, "enable_dp_attention": True}
    if options.quantization != "none":
        arguments["quantization"] = options.quantization
    if COLUMN in rollout.record:
        arguments["enable_return_routed_experts"] = True
        arguments["moe_runner_backend"] = "triton"  # others, as SGLang's choice for gpt-oss, record no experts
    attention = options.attention_backend or ("triton" if dtype is torch.float32 else None)
    if attention is not None:
        arguments["attention_backend"] = attention
    if dtype is torch.float32 and reads_images(model):
        arguments["mm_attention_backend"] = "sdpa"
    if options.max_model_len is not None:
        arguments["context_length"] = options.max_model_len + UNUSED_POSITIONS
    if torch.cuda.is_available() and torch.cuda.mem_get_info()[1] >= LARGE_DEVICE:
        arguments["cuda_graph_max_bs_decode"] = 512
    return arguments | options.engine_args


def check_patches(config: Any) -> None:
    """
    Raises:
        ConfigError: SGLang would not run the tower.
    """
    side = config.vision_config.patch_size if config.model_type == "qwen2_5_vl" else PATCH
    if side != PATCH:
        raise ConfigError(
            "rollout.name",
            f"SGLang reads images of qwen2_5_vl in patches of {PATCH} pixels alone, and the model's have {side}: "
            "use vllm",
        )


def check_window(config: Any, longest: int | None) -> None:
    """
    Args:
        config: the model's, as read by transformers.
        longest: tokens of prompt and response; None: all positions of the model.

    Raises:
        ConfigError: a sequence can be longer than a sliding window that SGLang ignores, so that log-probs differ.
    """
    text = config.get_text_config()
    window, longest = getattr(text, "sliding_window", None), longest or text.max_position_embeddings
    if text.model_type in WITHOUT_WINDOWS and window and longest > window:
        raise ConfigError(
            "rollout.options.max_model_len",
            f"is {longest}, and SGLang computes {text.model_type} without its sliding window of {window} tokens: set "
            f"at most {window}, or rollout.name=vllm",
        )


def adapter_arguments(adapter: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments for adapters, :func:`corerl_engines.adapters.described`, beside a base that is kept during sleep.

    Raises:
        ConfigError: SGLang does not take adapters of these layers.
    """
    if adapter is None:
        return {}
    layers = set(adapter["layers"])
    if EXPERTS in layers:
        raise ConfigError("rollout.lora", "SGLang gets adapters of experts merged: set it to merged")
    for some, whole in NEEDED.items():
        if layers & {*some} and (missing := sorted({*whole} - layers)):
            raise ConfigError(
                "model.target_modules",
                f"SGLang needs adapters of {' and '.join(missing)} beside those of {some[0]}: add them, or set "
                "rollout.lora=merged",
            )
    return {
        "enable_lora": True,
        "max_lora_rank": adapter["rank"],
        "lora_target_modules": adapter["layers"],
        "max_loras_per_batch": 1
        + adapter["count"],  # SGLang reserves one for requests without an adapter, as those of its start
        "enable_weights_cpu_backup": True,
    }


def memory_fraction(share: float) -> float:
    """SGLang's fraction refers to the free memory at its start; ``share`` refers to the whole memory."""
    if not torch.cuda.is_available():
        return share
    free, total = torch.cuda.mem_get_info()
    return round(min(share * total / free, LARGEST_FRACTION), 3)


def engine_environment(model: ModelConfig, options: SglangOptions) -> Mapping[str, str]:
    """Variables for the engine's process; values set by the user, in the options or outside, are kept."""
    defaults = {"SGLANG_RETURN_ORIGINAL_LOGPROB": "0", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    if compute_dtype(model, "cuda") is torch.float32:
        defaults |= FLOAT32_VARIABLES
    if model_arguments(model)[1]:
        defaults["HF_HUB_OFFLINE"] = "1"
    return {name: value for name, value in defaults.items() if name not in os.environ} | options.variables()
