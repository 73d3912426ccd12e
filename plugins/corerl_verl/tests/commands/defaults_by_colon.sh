export VERL_LOGGING_LEVEL=INFO HYDRA_FULL_ERROR=1
: "${MODEL:=Qwen/Qwen3-1.7B}"
: ${BS:=128}
N_GPU=$(nvidia-smi --list-gpus | wc -l)
TAG=$(echo "$MODEL" | sed 's#/#_#g')
WANDB_MODE=offline uv run python -m verl.trainer.main_ppo algorithm.adv_estimator=reinforce_plus_plus_baseline data.train_files=t.parquet \
  data.val_files=v.parquet data.train_batch_size=$BS actor_rollout_ref.actor.ppo_mini_batch_size=$((BS/2)) \
  actor_rollout_ref.model.path=$MODEL actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=$N_GPU \
  trainer.experiment_name="rpp_${TAG}_bs${BS}" algorithm.gamma=0.99 actor_rollout_ref.actor.use_kl_loss=True
