python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=t.parquet data.val_files=v.parquet actor_rollout_ref.model.path=Qwen/Qwen3-8B \
 actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.fsdp_config.fsdp_size=8 trainer.nnodes=4 \
 actor_rollout_ref.ref.strategy=fsdp2 actor_rollout_ref.ref.fsdp_config.fsdp_size=32 actor_rollout_ref.ref.fsdp_config.param_offload=True actor_rollout_ref.actor.use_kl_loss=True \
 actor_rollout_ref.actor.fsdp_config.offload_policy=True actor_rollout_ref.actor.ulysses_sequence_parallel_size=4 \
 global_profiler.tool=torch global_profiler.steps=[1,5] actor_rollout_ref.actor.profiler.enable=True actor_rollout_ref.actor.profiler.ranks=[0,7] \
 actor_rollout_ref.actor.fsdp_config.forward_prefetch=True +actor_rollout_ref.model.override_config.max_position_embeddings=32768 \
 data.apply_chat_template_kwargs.enable_thinking=False actor_rollout_ref.rollout.prometheus.enable=True actor_rollout_ref.rollout.prometheus.port=44398 \
 actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16 data.sampler.class_path=my.py data.sampler.class_name=S trainer.default_hdfs_dir=null
