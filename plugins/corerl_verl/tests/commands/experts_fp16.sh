dtype="float16" # ["bfloat16", "float16"]
python3 -m verl.trainer.main_ppo --config-path=config --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo data.train_files=t.parquet data.val_files=v.parquet actor_rollout_ref.model.path=m \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=16 actor_rollout_ref.rollout.dtype=${dtype} \
    actor_rollout_ref.actor.megatron.dtype=${dtype} actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=8 actor_rollout_ref.actor.megatron.grad_offload=True \
    +actor_rollout_ref.actor.megatron.override_transformer_config.apply_rope_fusion=True \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \
    actor_rollout_ref.actor.router_replay.mode=R3 actor_rollout_ref.actor.optim.clip_grad=1.0 trainer.device=npu
