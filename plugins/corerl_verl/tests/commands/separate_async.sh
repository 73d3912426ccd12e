python3 -m verl.trainer.main_ppo --config-name=ppo_trainer algorithm.adv_estimator=grpo data.train_files=t.parquet data.val_files=v.parquet \
 actor_rollout_ref.model.path=m actor_rollout_ref.hybrid_engine=False trainer.use_v1=True trainer.v1.trainer_mode=separate_async \
 actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.nnodes=1 actor_rollout_ref.rollout.n_gpus_per_node=4 trainer.n_gpus_per_node=4 \
 actor_rollout_ref.actor.strategy=fsdp2 algorithm.rollout_correction.bypass_mode=True actor_rollout_ref.actor.use_rollout_log_probs=True
