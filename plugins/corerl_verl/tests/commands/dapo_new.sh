bsz=32
ARGS=(
    algorithm.adv_estimator=grpo
    # scores of both signs
    reward.reward_manager.name=dapo
    +reward.reward_kwargs.overlong_buffer_cfg.enable=False
    +reward.reward_kwargs.overlong_buffer_cfg.len=512
    +reward.reward_kwargs.max_resp_len=2048
    algorithm.filter_groups.enable=True
    algorithm.filter_groups.metric=seq_reward
)
ARGS+=(data.train_batch_size=$bsz actor_rollout_ref.actor.ppo_mini_batch_size=$((bsz / 2)))
python3 -m verl.trainer.main_ppo "${ARGS[@]}" model_engine=dp data.train_files=[a.parquet,b.parquet] data.val_files=c.parquet \
    actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 "$@"
