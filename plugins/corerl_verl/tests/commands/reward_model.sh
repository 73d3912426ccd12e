python3 -m verl.trainer.main_ppo data.train_files=t.parquet data.val_files=v.parquet data.train_batch_size=1024 \
    actor_rollout_ref.model.path=m actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.ppo_micro_batch_size=128 critic.model.path=m critic.ppo_micro_batch_size=256 \
    critic.model.enable_gradient_checkpointing=False critic.forward_micro_batch_size_per_gpu=64 \
    reward_model.enable=True reward_model.model.path=rm \
    reward_model.micro_batch_size_per_gpu=16 reward_model.model.fsdp_config.param_offload=True \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.ref.fsdp_config.param_offload=True trainer.n_gpus_per_node=8
