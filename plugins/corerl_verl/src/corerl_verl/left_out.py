"""Keys of verl without a counterpart: those without an effect on the result, and those of features CoreRL lacks."""

from fnmatch import fnmatchcase
from typing import Any

from corerl_verl.conversion import Conversion, Kind, is_true

_COLUMNS = "CoreRL reads no audio"
_PROFILER = "CoreRL profiles with torch's own profiler (trainer.profile, docs/profiling.md)"
_OPTIMIZER = "CoreRL has adamw, adamw_8bit and muon: select one with optim.optimizer"
_LORA = "of verl's adapters CoreRL has model.lora_rank, lora_alpha, target_modules and exclude_modules"
_SHUFFLE = "mini-batches have the prompts of a step in the order of the data (data.shuffle)"
_INTERNAL = "a matter of verl's processes"
_FUSED = "a matter of memory and speed: actor.strategy.logits_chunk_size limits the logits in memory"

HARMLESS: tuple[tuple[str, str], ...] = (
    ("data.return_*", "prompts are always kept as chats"),
    ("data.filter_overlong_prompts_workers", "a matter of speed"),
    ("data.dataloader_num_workers", "a matter of speed"),
    ("data.use_shm", "a matter of speed"),
    ("data.trust_remote_code", "model.trust_remote_code applies to model and tokenizer"),
    ("data.image_patch_size", "the processor of the model has it"),
    ("data.validation_shuffle", "an evaluation covers all prompts"),
    ("model.use_remove_padding", "rows are packed (fsdp: actor.strategy.use_remove_padding)"),
    ("*model.use_fused_kernels", _FUSED),
    ("*model.fused_kernel_options.*", _FUSED),
    ("*model.use_liger", _FUSED),
    ("*model.tiled_mlp.*", _FUSED),
    ("critic.model.tokenizer_path", "responses reach the critic as the policy's tokens"),
    ("*.sum_pi_squared_checkpointing", _FUSED),
    ("*model.use_shm", "a matter of speed"),
    ("actor.entropy_from_logits_*", _FUSED),
    ("actor.entropy_checkpointing", _FUSED),
    ("ref.entropy_*", _FUSED),
    ("actor.use_fused_kernels", _FUSED),
    ("actor.use_prefix_grouper", "fsdp computes common prefixes once (actor.strategy.share_prefixes)"),
    ("actor.calculate_sum_pi_squared", "computed for the advantage estimators that need it"),
    ("actor.calculate_entropy", "actor/entropy is always measured"),
    ("*.data_loader_seed", "trainer.seed seeds all randomness"),
    ("*.use_remove_padding", "rows are packed"),
    ("*.rollout_n", "rollout.n"),
    ("*.loss_scale_factor", "null: data.max_response_length"),
    ("*.optim.total_training_steps", "the length of the run, by CoreRL too"),
    ("*.optim.zero_indexed_step", _INTERNAL),
    ("*.optim.num_cycles", "of the schedule cosine, which the command does not select"),
    ("*.optim.use_checkpoint_opt_param_scheduler", _INTERNAL),
    ("*.pad_to_length*", "rows are packed without padding"),
    ("rollout.mode", "engines are always asynchronous; trainer.max_staleness=1 generates during training"),
    ("rollout.calculate_log_probs", "engines always return log-probs"),
    ("rollout.disable_log_stats", "engines print no statistics"),
    ("rollout.multi_stage_wake_up", "memory of engines is freed and taken back by CoreRL"),
    ("rollout.layered_summon", "weights are sent in buckets"),
    ("rollout.skip_tokenizer_init", "engines get and return tokens"),
    ("rollout.update_weights_bucket_megabytes", "rollout.options.bucket_mb"),
    ("rollout.checkpoint_engine*", "weights travel by CUDA IPC or NCCL"),
    ("rollout.logprobs_mode", "engines return log-probs of the sampled distribution"),
    ("rollout.seed", "trainer.seed seeds all randomness"),
    ("rollout.full_determinism", "trainer.seed seeds all randomness"),
    ("rollout.use_fire_sampling", "verl reads it no more"),
    ("rollout.micro_batch_size*", "of verl's engine hf alone"),
    ("rollout.moe_tensor_parallel_size", "of verl's engine trtllm alone"),
    ("rollout.moe_load_balance_metrics_interval", "a matter of metrics"),
    ("rollout.layer_name_map*", _INTERNAL),
    ("rollout.server.*", _INTERNAL),
    ("rollout.sglang_engine_mode", _INTERNAL),
    ("rollout.enable_sleep_mode", "rollout.free_cache_engine"),
    ("rollout.checkpoint_manager_class", _INTERNAL),
    ("rollout.router_config_path", _INTERNAL),
    ("rollout.trace.*", "corerl rollouts show prints sample rollouts"),
    ("hybrid_engine", "models and engines share GPUs unless rollout.n_gpus_per_node is set"),
    ("actor_rollout_ref.hybrid_engine", "models and engines share GPUs unless rollout.n_gpus_per_node is set"),
    ("*nccl_timeout", "actor.strategy.timeout"),
    ("trainer.balance_batch", "batches are always balanced"),
    ("trainer.remove_previous_ckpt*", "trainer.max_ckpt_to_keep"),
    ("trainer.del_local_ckpt_after_load", "checkpoints stay"),
    ("trainer.ray_wait_register_center_timeout", "runtime.options.start_timeout"),
    ("trainer.esi_redundant_time", _INTERNAL),
    ("trainer.use_legacy_worker_impl", _INTERNAL),
    ("trainer.use_v1", _INTERNAL),
    ("trainer.rollout_data_dir", "samples are in the run's folder, every trainer.log_rollouts_freq steps"),
    ("trainer.validation_data_dir", "corerl generate writes every response to a file"),
    ("trainer.*_timestamp*", _INTERNAL),
    ("reward_model.launch_reward_fn_async", "responses are always scored during generation"),
    ("reward.num_workers", "reward.num_workers is the number of concurrent scorers"),
    ("reward_model.num_workers", "reward.num_workers is the number of concurrent scorers"),
    ("reward.reward_manager.source", "by name"),
    ("reward_manager.source", "by name"),
    ("transfer_queue.*", _INTERNAL),
    ("TransferQueue.*", _INTERNAL),
    ("hydra.*", _INTERNAL),
    ("*._target_", _INTERNAL),
    ("*.optim.use_precision_aware_optimizer", "a matter of memory: CoreRL's moments are float32"),
    ("*.optim.use_layer_wise_distributed_optimizer", "a matter of memory"),
    ("algorithm.rollout_correction.debug_rollout_actor_probs", "rollout_corr/* are measured without bypass_mode"),
)
"""pattern of keys -> why nothing is lost"""

NEUTRAL: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("data.audio_key", ("audios",)),
    ("data.train_max_samples", (-1, None)),
    ("*.optim.optimizer_impl", ("torch.optim",)),
    ("*.optim.num_cycles", (0.5, None)),
    ("*.optim.lr_warmup_init", (0, 0.0)),
    ("*.optim.min_lr", (0, 0.0)),
    ("rollout.repetition_penalty", (1, 1.0)),
    ("*.optim.lr_wsd_decay_*", (None, "exponential")),
    ("*.optim.weight_decay_incr_style", ("constant",)),
    ("*.optim.*_dtype", ("fp32",)),
    ("rollout.over_sample_rate", (0, 0.0)),
)
"""pattern of keys -> the values that CoreRL has too"""

MISSING: tuple[tuple[str, str], ...] = (
    ("data.audio_key", _COLUMNS),
    ("data.sampler.*", "a sampler of the user is a function for data.sampler (docs/data.md)"),
    ("data.datagen.*", "CoreRL has no generated data sets during training yet"),
    ("data.mm_processor_kwargs*", "CoreRL passes no arguments to the processor yet"),
    ("data.max_pixels", "the processor of the model has it"),
    ("data.min_pixels", "the processor of the model has it"),
    ("model.external_lib", "plugins.load names Python files with hooks"),
    ("model.lora.*", _LORA),
    ("model.lora*", _LORA),
    ("model.mtp.*", "CoreRL has no multi-token prediction yet"),
    ("model.hf_config_path", "the config lies in the model's folder"),
    ("model.custom_chat_template", "write the template to a file and set model.chat_template"),
    ("model.*moe*", "CoreRL has no such option of experts yet"),
    ("critic.model.*", "critic.model has keys of CoreRL's section model"),
    ("*.optim.*lr*", "of a schedule that is not converted: actor.optim.lr_scheduler_type (docs/optimizers.md)"),
    ("*.optim.muon_*", "of megatron-core's Muon, which CoreRL does not use"),
    ("rollout.repetition_penalty", "CoreRL samples without penalties"),
    ("*.optim.*", _OPTIMIZER),
    ("actor.shuffle", _SHUFFLE),
    ("critic.shuffle", _SHUFFLE),
    ("actor.qat*", "CoreRL trains in bf16 or fp32; lower precision does not exist yet"),
    ("*profile*", _PROFILER),
    ("*nsight*", _PROFILER),
    (
        "rollout.quantization*",
        "CoreRL's engines compute in the policy's dtype, or with rollout.options.quantization=fp8",
    ),
    ("rollout.qat*", "CoreRL's engines compute in the policy's dtype, or with rollout.options.quantization=fp8"),
    ("rollout.mtp*", "CoreRL has no multi-token prediction yet"),
    ("rollout.over_sample_rate", "is no share of a known data.train_batch_size"),
    ("rollout.disaggregation.*", "CoreRL's engines prefill and decode together"),
    ("rollout.agent.*", "servers and managers of agent loops have no counterpart: write an agent (docs/agents.md)"),
    ("rollout.multi_turn.*", "the agent verl_tools has no such option (docs/agents.md)"),
    ("rollout.custom*", "engines of the user are a plugin (docs/plugins.md)"),
    ("reward.reward_manager.*", "a reward manager of the user is a plugin (docs/plugins.md)"),
    ("reward_manager.*", "a reward manager of the user is a plugin (docs/plugins.md)"),
    ("reward_model.*", "CoreRL's reward model has no such option"),
    ("*.freeze_vision_tower", "CoreRL's megatron has no vision tower"),
    ("distillation.*", "the policy loss distill has no such option (docs/algorithms/distill.md)"),
    ("algorithm.use_pf_ppo", "CoreRL has no weighting of samples by preference feedback yet"),
    ("algorithm.pf_ppo.*", "CoreRL has no weighting of samples by preference feedback yet"),
    ("trainer.checkpoint_callback_class", "a hook of a plugin can act after each checkpoint (docs/reference/hooks.md)"),
    ("skip.*", "CoreRL has no replay of stored rollouts"),
    ("rollout.skip*", "CoreRL has no replay of stored rollouts"),
    ("trainer.runtime_env*", "runtime.options.environment names variables for the workers"),
    ("*.mindspeed*", "CoreRL has no NPU strategy"),
    ("*.veomni*", "CoreRL has no strategy veomni yet"),
    ("*.torchtitan*", "CoreRL has no strategy torchtitan yet"),
    ("*.engine.*", "CoreRL has no such strategy yet"),
)
"""pattern of keys -> the feature that CoreRL does not have, or what to do"""


_SWITCHED = ("qat", "mtp", "skip", "disaggregation", "tiled_mlp", "turbo_config", "prefix_grouper", "datagen")
"""sections with a key ``enable`` or ``enabled``, which is false by default"""


def switched_off(conversion: Conversion) -> None:
    """The options of features that the command leaves off."""
    for key in list(conversion.given):
        *sections, _ = key.split(".")
        found = [place for place, name in enumerate(sections) if name in _SWITCHED]
        section = ".".join(sections[: found[0] + 1]) if found else ""
        if section and not any(is_true(conversion.effective(f"{section}.{name}")) for name in ("enable", "enabled")):
            conversion.drop(key, f"{section} is off, as in CoreRL")
    if not is_true(conversion.effective("rollout.skip_rollout")):
        conversion.drop("rollout.skip_dump_dir", "rollout.skip_rollout is off, as in CoreRL")
    for role in ("actor", "critic"):
        optimizer = str(conversion.effective(f"{role}.optim.optimizer"))
        for key in list(conversion.given) if "muon" not in optimizer.lower() else ():
            if key.startswith(f"{role}.optim.muon_"):
                conversion.drop(key, f"the optimizer is {optimizer}")


def left_out(conversion: Conversion, key: str) -> tuple[Kind, str]:
    """The kind and the reason for a given key without a counterpart."""
    value = conversion.given.get(key)
    if any(fnmatchcase(key, pattern) and value in neutral for pattern, neutral in NEUTRAL):
        return "harmless", "verl's default, which is what CoreRL does"
    if isinstance(value, str) and value.startswith("${oc.select:"):
        return "harmless", "another section, whose keys are converted themselves"
    for pattern, reason in HARMLESS:
        if fnmatchcase(key, pattern):
            return "harmless", reason
    for pattern, reason in MISSING:
        if fnmatchcase(key, pattern):
            if value is None or value is False or value == {} or value == []:
                return "harmless", "off, as in CoreRL"
            return "missing", reason
    if value is None:
        return "harmless", "null, as if it were not given"
    return "unknown", "there is no such key"
