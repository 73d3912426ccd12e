python3 -m recipe.entropy.main_entropy --config-path=config --config-name=entropy_trainer algorithm.adv_estimator=grpo data.train_files=t.parquet \
 data.val_files=[a.parquet,b.parquet] data.gen_batch_size=768 data.train_batch_size=256 actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=vllm \
 actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov actor_rollout_ref.actor.policy_loss.kl_cov_ratio=0.002 actor_rollout_ref.actor.policy_loss.ppo_kl_coef=1 \
 algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc algorithm.filter_groups.max_num_gen_batches=10 \
 reward_model.reward_manager=dapo reward_model.overlong_buffer.enable=False reward_model.overlong_buffer.len=2048 reward_model.overlong_buffer.penalty_factor=1.0 \
 actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.optim.lr_warmup_steps=-1
