"""Keys of verl with another name in CoreRL, or none; ``scripts/verl_page.py`` writes them to docs/verl.md.

Keys that differ only by ``actor_rollout_ref.`` are not listed. ``*`` stands for the rest of a key.
"""

from collections.abc import Mapping
from typing import NamedTuple

PREFIX = "actor_rollout_ref."

_MICRO_BATCHES = (
    "log-probs are computed in the actor's micro-batches (actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu, "
    "actor.ppo_micro_batch_size_per_gpu)"
)
_REFERENCE = "written if the reference's options differ from the actor's"
_PER_GPU = "write the size of one GPU"
_PACKED = "fsdp and megatron pack rows (fsdp: actor.strategy.use_remove_padding)"
_WEIGHTS = "weights are sharded over all ranks of actor.strategy=fsdp"
_REWARD_MODEL = "a reward model is reward.manager={name: model, path: …}"


class VerlKey(NamedTuple):
    """CoreRL's counterpart of a key of verl.

    Attributes:
        verl: verl's name, without ``actor_rollout_ref.``.
        here: CoreRL's keys with the same value; empty if there is no counterpart.
        note: a remark, or ''.
    """

    verl: str
    here: tuple[str, ...] = ()
    note: str = ""


def _same(verl: str, here: str, *names: str) -> tuple[VerlKey, ...]:
    return tuple(VerlKey(f"{verl}.{name}", (f"{here}.{name}",)) for name in names)


ALIASES: Mapping[str, str] = {
    "algorithm.gamma": "algorithm.adv_estimator.gamma",
    "algorithm.lam": "algorithm.adv_estimator.lam",
    "algorithm.norm_adv_by_std_in_grpo": "algorithm.adv_estimator.norm_adv_by_std_in_grpo",
    "algorithm.kl_ctrl.target_kl": "algorithm.kl_ctrl.type.target_kl",
    "algorithm.kl_ctrl.horizon": "algorithm.kl_ctrl.type.horizon",
    "algorithm.filter_groups.metric": "algorithm.filter_groups.filter.metric",
    "actor.clip_ratio_low": "actor.policy_loss.clip_ratio_low",
    "actor.clip_ratio_high": "actor.policy_loss.clip_ratio_high",
    "actor.clip_ratio_c": "actor.policy_loss.clip_ratio_c",
    "critic.cliprange_value": "critic.value_loss.cliprange_value",
    "reward.memory_limit_gb": "reward.manager.memory_limit_gb",
}
"""names that a config of CoreRL may have too -> CoreRL's keys"""

_FSDP = ("fsdp_size", "param_offload", "optimizer_offload", "offload_policy", "reshard_after_forward")

TABLE: tuple[VerlKey, ...] = (
    *(VerlKey(alias, (key,), "also accepted under verl's name") for alias, key in ALIASES.items()),
    VerlKey("data.tokenizer", ("model.tokenizer_path",)),
    VerlKey("data.prompt_key", ("data.columns.prompt",)),
    VerlKey("data.reward_fn_key", ("data.columns.data_source",)),
    VerlKey("data.image_key", ("data.columns.images",)),
    VerlKey("data.video_key", ("data.columns.videos",)),
    VerlKey("data.custom_cls.path", ("data.custom_cls",), "one value for path and name, ./file.py:Class"),
    VerlKey("data.custom_cls.name", ("data.custom_cls",), "one value for path and name, ./file.py:Class"),
    VerlKey("data.return_raw_chat", (), "prompts are always kept as chats"),
    VerlKey("data.return_raw_input_ids", (), "prompts are always kept as chats"),
    VerlKey("model.use_remove_padding", (), _PACKED),
    VerlKey("model.override_config.model_config.*", ("model.override_config.*",), "of verl's megatron"),
    VerlKey("model.override_config.attn_implementation", ("model.attn_implementation",)),
    VerlKey("model.enable_activation_offload", ("actor.strategy.activation_offload",), "of fsdp and torch"),
    VerlKey("critic.model.enable_activation_offload", ("critic.strategy.activation_offload",), "of fsdp and torch"),
    VerlKey("model.external_lib", (), "plugins.load names Python files with hooks"),
    VerlKey("model.use_fused_kernels", (), "actor.strategy.logits_chunk_size limits the logits in memory"),
    VerlKey("actor.clip_ratio", ("actor.policy_loss.clip_ratio_low", "actor.policy_loss.clip_ratio_high")),
    VerlKey("actor.policy_loss.loss_mode", ("actor.policy_loss",)),
    VerlKey("actor.use_gpg_loss", ("actor.policy_loss",), "gpg"),
    VerlKey("actor.policy_loss.dro_beta", ("actor.policy_loss.beta",), "of dro"),
    VerlKey("actor.tau_pos", ("actor.policy_loss.tau_pos",), "of sapo"),
    VerlKey("actor.tau_neg", ("actor.policy_loss.tau_neg",), "of sapo"),
    VerlKey("actor.calculate_sum_pi_squared", (), "computed for the advantage estimators that need it"),
    VerlKey("actor.use_token_level_loss", ("actor.loss_agg_mode",), "token-mean; false: seq-mean-token-mean"),
    VerlKey(
        "actor.use_rollout_log_probs",
        (),
        "algorithm.rollout_correction.bypass_mode=true uses the engine's log-probs as old log-probs",
    ),
    VerlKey("actor.calculate_entropy", (), "actor/entropy is always measured"),
    *_same("algorithm", "algorithm.adv_estimator", "gdpo_reward_keys", "gdpo_reward_weights"),
    VerlKey("algorithm.rollout_correction.loss_type", (), "with bypass_mode, ppo_clip is vanilla and reinforce is gpg"),
    VerlKey(
        "algorithm.rollout_correction.rollout_token_veto_threshold",
        ("algorithm.rollout_correction.rollout_rs.seq_max_k1",),
        "[threshold, 1e9]: a response with a ratio below it is rejected",
    ),
    VerlKey(
        "algorithm.rollout_correction.debug_rollout_actor_probs", (), "rollout_corr/* are measured without bypass_mode"
    ),
    VerlKey("actor.use_torch_compile", ("actor.strategy.compile",), "of fsdp and torch"),
    VerlKey("actor.ppo_micro_batch_size", ("actor.ppo_micro_batch_size_per_gpu",), _PER_GPU),
    VerlKey("actor.optim.warmup_style", ("actor.optim.lr_scheduler_type",)),
    VerlKey("actor.optim.clip_grad", ("actor.grad_clip",)),
    VerlKey("critic.optim.clip_grad", ("critic.grad_clip",)),
    VerlKey(
        "actor.optim.override_optimizer_config.optimizer_offload_fraction",
        ("actor.optim.optimizer.offload_fraction",),
        "with optimizer_cpu_offload; of megatron: actor.strategy.optimizer_offload",
    ),
    *_same("actor.checkpoint", "actor.strategy", "load_contents"),
    *_same("critic.checkpoint", "critic.strategy", "load_contents"),
    VerlKey(
        "actor.checkpoint.save_contents",
        ("actor.strategy.save_optimizer",),
        "false without optimizer",
    ),
    VerlKey("actor.checkpoint.async_save", ("trainer.async_save",)),
    VerlKey("actor.checkpoint.*", (), "trainer.save_huggingface selects the checkpoints with a model folder"),
    VerlKey(
        "actor.tis_imp_ratio_cap",
        ("algorithm.rollout_correction.rollout_is_threshold",),
        "together with rollout_is=token",
    ),
    VerlKey(
        "actor.ulysses_sequence_parallel_size", ("actor.strategy.ulysses_sequence_parallel_size",), "with strategy fsdp"
    ),
    *_same("actor.fsdp_config", "actor.strategy", *_FSDP),
    VerlKey("actor.fsdp_config.*", (), _WEIGHTS),
    VerlKey(
        "actor.megatron.override_transformer_config.pipeline_model_parallel_layout",
        ("actor.strategy.override_transformer_config.num_layers_in_first_pipeline_stage",),
        "and num_layers_in_last_pipeline_stage, if the stages between have equal numbers",
    ),
    VerlKey(
        "actor.megatron.override_transformer_config.*",
        ("actor.strategy.override_transformer_config.*",),
        "recompute_granularity, recompute_method, recompute_num_layers and recompute_modules: actor.strategy.*",
    ),
    VerlKey("actor.megatron.*", ("actor.strategy.*",), "with actor.strategy=megatron"),
    VerlKey("ref.model.path", ("ref.path",)),
    VerlKey("ref.log_prob_use_dynamic_bsz", (), "actor.use_dynamic_bsz applies to all"),
    VerlKey("ref.ulysses_sequence_parallel_size", ("ref.strategy.ulysses_sequence_parallel_size",), _REFERENCE),
    VerlKey("ref.fsdp_config.*", ("ref.strategy.*",), _REFERENCE),
    VerlKey("ref.megatron.*", ("ref.strategy.*",), _REFERENCE),
    VerlKey("rollout.log_prob_micro_batch_size_per_gpu", (), _MICRO_BATCHES),
    VerlKey("rollout.log_prob_micro_batch_size", (), _MICRO_BATCHES),
    VerlKey("rollout.log_prob_use_dynamic_bsz", (), _MICRO_BATCHES),
    VerlKey("rollout.log_prob_max_token_len_per_gpu", (), _MICRO_BATCHES),
    *_same("rollout", "rollout.options", "gpu_memory_utilization", "max_model_len", "enforce_eager"),
    VerlKey("rollout.load_format", ("rollout.options.load_format",), "auto or dummy"),
    *_same(
        "rollout", "rollout.options.engine_args", "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill"
    ),
    VerlKey(
        "rollout.expert_parallel_size",
        ("rollout.options.engine_args.ep_size",),
        "of sglang; vllm: rollout.options.engine_args.enable_expert_parallel, set with rollout.data_parallel_size > 1",
    ),
    VerlKey("rollout.engine_kwargs.vllm.*", ("rollout.options.engine_args.*",)),
    VerlKey("rollout.engine_kwargs.sglang.*", ("rollout.options.engine_args.*",)),
    VerlKey(
        "rollout.over_sample_rate",
        (),
        "trainer.batch_order=first_finished with trainer.batch_window groups beyond data.train_batch_size",
    ),
    VerlKey("rollout.mode", (), "engines are always asynchronous; trainer.max_staleness=1 generates during training"),
    VerlKey("rollout.dtype", ("model.dtype",), "bf16, fp16 or fp32, of engine and training"),
    VerlKey("rollout.do_sample", (), "training always samples; rollout.val_kwargs.do_sample sets the evaluation"),
    VerlKey("rollout.calculate_log_probs", (), "engines always return log-probs"),
    VerlKey("rollout.prompt_length", ("data.max_prompt_length",)),
    VerlKey("rollout.response_length", ("data.max_response_length",)),
    VerlKey("rollout.agent.num_workers", ("rollout.num_workers",), "of an agent"),
    VerlKey("rollout.agent.agent_loop_config_path", ("rollout.agent.config",), "of rollout.agent=verl_agent_loop"),
    VerlKey("rollout.agent.default_agent_loop", ("rollout.agent.loop",), "of rollout.agent=verl_agent_loop"),
    VerlKey("rollout.multi_turn.enable", (), "rollout.agent selects an agent"),
    VerlKey("rollout.multi_turn.tool_config_path", ("rollout.agent.tools",), "of rollout.agent=verl_tools"),
    VerlKey("rollout.multi_turn.function_tool_path", ("rollout.agent.functions",), "of rollout.agent=verl_tools"),
    VerlKey("rollout.multi_turn.interaction_config_path", ("rollout.agent.interactions",), "likewise"),
    VerlKey("rollout.multi_turn.max_parallel_calls", ("rollout.agent.max_calls",), "likewise"),
    VerlKey("rollout.multi_turn.tool_response_truncate_side", ("rollout.agent.truncate_side",), "likewise"),
    VerlKey("rollout.multi_turn.max_turns", ("rollout.multi_turn.max_assistant_turns",)),
    VerlKey(
        "rollout.multi_turn.max_user_turns",
        ("rollout.multi_turn.max_assistant_turns",),
        "one more: after the last answer the policy has another turn",
    ),
    VerlKey("critic.model.path", ("critic.path",)),
    *_same("critic.model.fsdp_config", "critic.strategy", *_FSDP),
    VerlKey("critic.megatron.*", ("critic.strategy.*",), "with critic.strategy=megatron"),
    VerlKey("critic.ulysses_sequence_parallel_size", ("critic.strategy.ulysses_sequence_parallel_size",)),
    *_same("critic.model", "critic.model", "enable_gradient_checkpointing", "trust_remote_code"),
    *_same("critic.model", "critic.model", "lora_rank", "lora_alpha", "target_modules"),
    VerlKey("critic.model.override_config.*", ("critic.model.override_config.*",)),
    VerlKey("critic.model.*", (), "critic.model has keys of CoreRL's section model"),
    VerlKey("critic.use_dynamic_bsz", (), "actor.use_dynamic_bsz applies to both"),
    VerlKey("critic.forward_max_token_len_per_gpu", ("critic.ppo_max_token_len_per_gpu",)),
    VerlKey("critic.forward_micro_batch_size_per_gpu", ("critic.ppo_micro_batch_size_per_gpu",)),
    VerlKey(
        "custom_reward_function.path",
        ("reward.scorer",),
        "one value for path and name, ./file.py:function; its arguments are (response, ground_truth, data_source, "
        "extra_info)",
    ),
    VerlKey("custom_reward_function.name", ("reward.scorer",), "one value for path and name, ./file.py:function"),
    VerlKey("reward.custom_reward_function.path", ("reward.scorer",), "as custom_reward_function.path"),
    VerlKey("reward.custom_reward_function.name", ("reward.scorer",), "as custom_reward_function.name"),
    VerlKey("reward_model.reward_manager", ("reward.manager",)),
    VerlKey("reward.reward_manager.name", ("reward.manager",)),
    VerlKey(
        "reward.reward_kwargs.overlong_buffer_cfg.len",
        ("reward.manager.overlong_buffer_len",),
        "of reward.manager=dapo",
    ),
    VerlKey(
        "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
        ("reward.manager.overlong_penalty_factor",),
        "of reward.manager=dapo",
    ),
    VerlKey("reward.reward_kwargs.max_resp_len", ("reward.manager.max_resp_len",), "of reward.manager=dapo"),
    VerlKey("model_engine", ("actor.strategy",), "fsdp or megatron"),
    VerlKey("reward_model.overlong_buffer.len", ("reward.manager.overlong_buffer_len",), "of reward.manager=dapo"),
    VerlKey(
        "reward_model.overlong_buffer.penalty_factor",
        ("reward.manager.overlong_penalty_factor",),
        "of reward.manager=dapo",
    ),
    VerlKey(
        "reward_model.overlong_buffer.enable",
        ("reward.manager",),
        "dapo if true, parallel if false (the default)",
    ),
    VerlKey("reward_model.overlong_buffer.*", (), "reward.manager=dapo shapes the scores of long responses"),
    VerlKey("reward_model.launch_reward_fn_async", (), "responses are always scored during generation"),
    VerlKey("reward_model.*", (), _REWARD_MODEL),
    VerlKey("rollout.prometheus.*", ("tracking.loggers",), "{name: prometheus, port: 9464}, of the metrics of steps"),
    VerlKey("trainer.logger", ("tracking.loggers",), "a list"),
    *_same("trainer", "tracking", "project_name", "experiment_name"),
    *_same("trainer", "runtime", "nnodes", "n_gpus_per_node"),
    VerlKey("trainer.device", ("actor.device",)),
    VerlKey("trainer.default_local_dir", ("trainer.output_dir",)),
    VerlKey(
        "trainer.default_hdfs_dir",
        ("trainer.remote_dir",),
        "a copy of each checkpoint, by fsspec; a fresh machine resumes from it",
    ),
    VerlKey("trainer.max_actor_ckpt_to_keep", ("trainer.max_ckpt_to_keep",), "actor and critic together"),
    VerlKey("trainer.max_critic_ckpt_to_keep", ("trainer.max_ckpt_to_keep",), "actor and critic together"),
    VerlKey("trainer.resume_from_path", ("trainer.resume_mode",)),
    VerlKey("trainer.balance_batch", (), "batches are always balanced"),
    VerlKey("trainer.val_only", (), "corerl generate and corerl eval evaluate without training"),
    VerlKey("trainer.val_generations_to_log_to_wandb", ("trainer.log_val_generations",)),
    VerlKey("val_generations_to_log_to_wandb", ("trainer.log_val_generations",)),
    VerlKey("trainer.rollout_data_dir", (), "samples are in the run's folder, every trainer.log_rollouts_freq steps"),
    VerlKey("trainer.validation_data_dir", (), "corerl generate writes every response to a file"),
    VerlKey("trainer.profile_steps", ("trainer.profile.steps",)),
    VerlKey("global_profiler.steps", ("trainer.profile.steps",)),
    VerlKey("global_profiler.tool", ("trainer.profile",), "torch, or torch_memory (memory: true)"),
    VerlKey("global_profiler.save_path", (), "profiles are written into the run's folder"),
    VerlKey("actor.profiler.ranks", ("trainer.profile.ranks",), "of all roles"),
    VerlKey("actor.profiler.all_ranks", ("trainer.profile.ranks",), "null: all ranks"),
    VerlKey("actor.profiler.enable", ("trainer.profile.roles",), "a list of roles; the same for ref, rollout, critic"),
    VerlKey("ray_init.*", (), "runtime.options has Ray's options (corerl plugins show ray)"),
    VerlKey("ray_kwargs.*", (), "runtime.options has Ray's options (corerl plugins show ray)"),
)


def verl_key(key: str) -> VerlKey | None:
    """The row for a key of verl, with ``*`` filled in; None if there is none.

    >>> verl_key("actor_rollout_ref.actor.megatron.context_parallel_size").here
    ('actor.strategy.context_parallel_size',)
    """
    key = key.removeprefix(PREFIX)
    for row in TABLE:
        if row.verl == key:
            return row
        if row.verl.endswith(".*") and key.startswith(row.verl[:-1]):
            rest = key.removeprefix(row.verl[:-1])
            return row._replace(verl=key, here=tuple(here.replace("*", rest) for here in row.here))
    return None


def hint(key: str) -> str | None:
    """CoreRL's counterpart of a key of verl, as the end of a sentence; None if it is no key of verl.

    >>> hint("trainer.logger")
    "verl's key is tracking.loggers in CoreRL: a list"
    """
    row = verl_key(key)
    if row is None:
        return _remedy(key.removeprefix(PREFIX)) if key.startswith(PREFIX) else None
    if not row.here:
        return f"verl's key has no counterpart: {row.note}"
    return f"verl's key is {' and '.join(row.here)} in CoreRL" + (f": {row.note}" if row.note else "")


def _remedy(key: str) -> str:
    from corerl.config.nearest_keys import dotted_keys, remedy
    from corerl.contracts.config import TrainConfig

    return f"{remedy(key, dotted_keys(TrainConfig))} (`corerl config from-verl` translates all of verl's keys)"
