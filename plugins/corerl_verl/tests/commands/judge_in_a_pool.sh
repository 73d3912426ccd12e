REWARD=(
  reward.reward_model.enable=True reward.reward_model.enable_resource_pool=True reward.reward_model.n_gpus_per_node=8 reward.reward_model.nnodes=1
  reward.reward_model.model_path=$HOME/models/genrm reward.reward_model.rollout.name=vllm reward.reward_model.rollout.tensor_model_parallel_size=4
  reward.reward_model.rollout.gpu_memory_utilization=0.8 reward.reward_model.rollout.prompt_length=8192 reward.reward_model.rollout.response_length=4096
  reward.custom_reward_function.path=recipe/genrm/reward.py reward.custom_reward_function.name=compute_score_genrm
)
python3 -m verl.trainer.main_ppo model_engine=dp algorithm.adv_estimator=grpo data.train_files=a.parquet data.val_files=b.parquet \
  actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 trainer.nnodes=2 "${REWARD[@]}"
