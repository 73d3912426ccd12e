"""Rollout backend ``vllm``: the side in the trainer's process. It imports no vLLM."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import corerl_vllm_engine
from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.errors import ConfigError
from corerl.models import compute_dtype
from corerl_engines import nodes
from corerl_engines.adapters import described, takes
from corerl_engines.backend import FLOAT32_VARIABLES, EngineBackend, model_arguments
from corerl_engines.experts import recorded_experts
from corerl_engines.images import reads_images
from corerl_engines.options import check_engine_args
from corerl_engines.process import EngineKind
from corerl_engines.quantization import check_quantization
from corerl_torch import bitwise
from corerl_torch.expert_adapters import EXPERTS
from corerl_torch.routers import COLUMN
from corerl_vllm.options import TESTED, VllmOptions

KIND = EngineKind("vllm", "vLLM", Path(corerl_vllm_engine.__file__).parent, "VLLM_HOST_IP")

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""values of vLLM's ``max_lora_rank``"""

FP8 = {
    "quantization": "fp8_per_channel",
    "quantization_config": {"ignore": ["re:.*[._](gate|router)$"]},
}
"""arguments for FP8 weights with a scale of each output channel, and activations with a scale of each token; routers of
experts, which some of vLLM's models would quantise, are left out"""

FITTING = -1
"""the model's own length, or as much as the cache holds"""

LOOPBACK_VARIABLES = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""an engine's processes are on one machine, unless the runtime has several for it, or the user selects an executor"""

PRELOADED = (
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.gpu_model_runner",
    "corerl_vllm_engine.gpu_worker",
    "corerl_vllm_engine.scheduler",
    "corerl_vllm_engine.worker",
)
"""modules of a core's process on a GPU; on the CPU vLLM sets variables that must be there before its import"""

CPU_VARIABLES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
"""a single worker runs in its core's process, as on a GPU; two processes that spin while waiting starve all others.
torch compiles headers into the folder for temporary files, which is the engine's own: ten seconds of every start"""

WITHOUT_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
"""settings of NCCL and torch for several GPUs that cannot or must not use NVLink multicast"""


class VllmBackend(EngineBackend):
    """See :class:`corerl_engines.backend.EngineBackend`."""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, device: str, options: VllmOptions) -> None:
        """Start the engine.

        Raises:
            ConfigError: no such interpreter, an engine argument with a key of its own, sizes that do not divide,
                quantised weights on the CPU, or experts to record there, whose kernels return none.
            RunError: vLLM is missing or of an untested version, or the engine did not start.
        """
        if COLUMN in rollout.record and device == "cpu":
            raise ConfigError(
                "rollout.record", "vLLM returns no experts on the CPU: use a CUDA device, or rollout.name=hf"
            )
        check_quantization(options, model, device, adapters=takes(model, rollout))
        if options.bitwise and reads_images(model):
            raise ConfigError("rollout.options.bitwise", "vllm has equal bits for models of text alone: use hf")
        if nodes.here.others:
            options.check_nodes(len(nodes.here))
        adapter = described(model, rollout, options)
        level = 1 if adapter else options.sleep_level
        settings = {
            "engine_args": engine_arguments(model, rollout, options, device) | adapter_arguments(adapter, device),
            "adapter": adapter,
            "sleep_level": level if device == "cuda" else 0,
            "replicas": options.replicas,
            "preloaded": PRELOADED if device == "cuda" else (),
            "experts": recorded_experts(model, rollout),
            "bitwise": options.bitwise,
            "reads_images": reads_images(model),
        }
        environment = engine_environment(model, options, device)
        super().__init__(KIND, TESTED, model, rollout, device, options, environment, settings)


def engine_arguments(model: ModelConfig, rollout: RolloutConfig, options: VllmOptions, device: str) -> dict[str, Any]:
    """Arguments of vLLM's AsyncEngineArgs.

    Raises:
        ConfigError: ``engine_args`` sets an argument that has a key of its own.
    """
    check_engine_args(options)
    dummy = "dummy" in (model.load_format, options.load_format)
    arguments: dict[str, Any] = {
        "model": model_arguments(model)[0],
        "dtype": str(compute_dtype(model, device)).removeprefix("torch."),
        "trust_remote_code": model.trust_remote_code,
        "load_format": "dummy" if dummy else "auto",
        "skip_tokenizer_init": not reads_images(model),  # vLLM's processors of images need a tokenizer
        "generation_config": "vllm",
        "worker_extension_cls": "corerl_vllm_engine.worker.Worker",
        "scheduler_cls": "corerl_vllm_engine.scheduler.make",
        "logprobs_mode": "processed_logprobs",
        "tensor_parallel_size": rollout.tensor_model_parallel_size,
        "pipeline_parallel_size": rollout.pipeline_model_parallel_size,
        "enforce_eager": device == "cpu" if options.enforce_eager is None else options.enforce_eager,
        "max_model_len": options.max_model_len or FITTING,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
    }
    if rollout.data_parallel_size > 1:
        arguments |= {"data_parallel_size": rollout.data_parallel_size, "enable_expert_parallel": True}
    if options.quantization != "none":
        arguments |= FP8
    if reads_images(model):
        arguments["mm_processor_cache_gb"] = 0  # pixels come from files, not from vLLM's processor
        arguments["limit_mm_per_prompt"] = {"video": 0}  # or the start measures the longest video
    if rollout.record:
        arguments["max_logprobs"] = max(20, rollout.top_k, rollout.val_kwargs.top_k, rollout.top_log_probs)
    if COLUMN in rollout.record:
        arguments["enable_return_routed_experts"] = True
    if options.bitwise:
        bitwise.check(model, device)
        if rollout.gpus_per_engine > 1:
            raise ConfigError("rollout.options.bitwise", "needs an engine of one GPU")
        arguments["model_impl"] = "transformers"
        arguments["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}  # compiled code rounds anew
    if device == "cpu":
        arguments["enable_chunked_prefill"] = False  # with it, a waiting request with a seed ends the engine
    if device == "cuda":
        share = options.gpu_memory_utilization / options.replicas
        arguments |= {
            "gpu_memory_utilization": share,
            "enable_sleep_mode": True,
            "worker_cls": "corerl_vllm_engine.gpu_worker.GpuWorker",
            "distributed_executor_backend": "mp",  # workers launch kernels while the core schedules
        }
        variables, are_several = os.environ | options.variables(), rollout.gpus_per_engine > 1
        without = any(variables.get(name) == value for name, value in WITHOUT_MULTICAST.items()) or nodes.here.others
        if are_several and without:
            # a sum over GPUs compiled into one kernel with a norm hangs without multicast (vLLM issue 48071)
            arguments["compilation_config"] = {"pass_config": {"fuse_allreduce_rms": False}}
        if nodes.here.others:
            arguments["disable_custom_all_reduce"] = True  # for GPUs that all processes of the engine see
    return arguments | options.engine_args


def adapter_arguments(adapter: Mapping[str, Any] | None, device: str) -> dict[str, Any]:
    """Arguments for adapters, :func:`corerl_engines.adapters.described`, of which every request uses one.

    Raises:
        ConfigError: vLLM has no room for the rank, or has adapters of experts on CUDA only.
    """
    if adapter is None:
        return {}
    rooms = [rank for rank in RANKS if rank >= adapter["rank"]]
    if not rooms:
        raise ConfigError("model.lora_rank", f"is {adapter['rank']}, and vLLM takes at most {RANKS[-1]}: lower it")
    if EXPERTS in adapter["layers"] and device == "cpu":
        raise ConfigError("rollout.lora", "vLLM has adapters of experts only on CUDA: set it to merged")
    stacked = {"enable_mixed_moe_lora_format": True} if EXPERTS in adapter["layers"] else {}
    return stacked | {
        "enable_lora": True,
        "max_loras": adapter["count"],
        "max_lora_rank": rooms[0],
        "lora_target_modules": adapter["layers"],
    }


def engine_environment(model: ModelConfig, options: VllmOptions, device: str) -> Mapping[str, str]:
    """Variables for the engine's process; values set by the user, in the options or outside, are kept."""
    defaults = {"VLLM_NO_USAGE_STATS": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    if model_arguments(model)[1]:
        defaults["HF_HUB_OFFLINE"] = "1"
    if compute_dtype(model, device) is torch.float32:
        defaults |= FLOAT32_VARIABLES
    if options.bitwise:
        defaults[corerl_vllm_engine.BITWISE] = "1"
    if "distributed_executor_backend" not in options.engine_args and not nodes.here.others:
        defaults |= LOOPBACK_VARIABLES
    if device == "cpu":
        defaults |= CPU_VARIABLES | {"VLLM_CPU_KVCACHE_SPACE": str(options.cpu_kv_cache_gb)}
    return {name: value for name, value in defaults.items() if name not in os.environ} | options.variables()
