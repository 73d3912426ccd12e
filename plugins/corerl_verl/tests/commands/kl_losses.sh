python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov \
    +actor_rollout_ref.actor.policy_loss.kl_cov_ratio=0.002 +actor_rollout_ref.actor.policy_loss.ppo_kl_coef=1.0 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.0 algorithm.gamma=1.0 \
    data.train_files=t.parquet data.val_files=v.parquet data.gen_batch_size=512 data.train_batch_size=256 \
    actor_rollout_ref.model.path=m actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.name=trtllm \
    actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2 actor_rollout_ref.actor.fsdp_config.fsdp_size=4
