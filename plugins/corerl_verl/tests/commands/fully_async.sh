python -m recipe.fully_async_policy.fully_async_main data.train_files=t.parquet data.val_files=v.parquet \
    data.train_batch_size=0 data.gen_batch_size=1 algorithm.adv_estimator=grpo actor_rollout_ref.model.path=m \
    actor_rollout_ref.actor.strategy=fsdp2 critic.strategy=fsdp2 actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.mode=async actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0 actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    trainer.n_gpus_per_node=4 rollout.nnodes=1 rollout.n_gpus_per_node=4 rollout.total_rollout_steps=$((512*100)) \
    rollout.test_freq=10 async_training.trigger_parameter_sync_step=16 async_training.staleness_threshold=0.1
