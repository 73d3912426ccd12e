python3 -m verl.experimental.one_step_off_policy.main_ppo --config-name=one_step_off_ppo_trainer \
    algorithm.adv_estimator=grpo data.train_files=t.parquet data.val_files=v.parquet data.train_batch_size=128 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.hybrid_engine=False trainer.n_gpus_per_node=6 rollout.nnodes=1 rollout.n_gpus_per_node=2
