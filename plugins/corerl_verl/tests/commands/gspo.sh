loss_mode=gspo
kl=false
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=${loss_mode} \
    actor_rollout_ref.actor.clip_ratio_low=0.0003 actor_rollout_ref.actor.clip_ratio_high=0.0004 \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean actor_rollout_ref.actor.use_kl_loss=${kl} \
    data.train_files="['/data/gsm8k/train.parquet']" data.val_files="['/data/gsm8k/test.parquet']" \
    data.train_batch_size=512 actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.model.path=m \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05 trainer.total_training_steps=500 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.mode=sync actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.val_kwargs.n=4 actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
    actor_rollout_ref.actor.entropy_checkpointing=true trainer.nnodes="${SLURM_JOB_NUM_NODES}"
