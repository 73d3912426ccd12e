python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae data.train_files=a.parquet data.val_files=b.parquet data.return_raw_chat=True \
  actor_rollout_ref.model.path=m critic.model.path=m actor_rollout_ref.rollout.name=sglang \
  reward.reward_model.enable=True reward.reward_model.model_path=sfairXC/FsfairX-LLaMA3-RM-v0.1 reward.reward_model.rollout.name=sglang \
  reward.reward_model.rollout.tensor_model_parallel_size=1 reward.reward_model.rollout.gpu_memory_utilization=0.3 \
  trainer.n_gpus_per_node=8 trainer.nnodes=1
