#!/usr/bin/env bash
set -xeuo pipefail
gspo=(
  actor_rollout_ref.actor.policy_loss.loss_mode=gspo
  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean
  actor_rollout_ref.actor.clip_ratio_low=3e-4 actor_rollout_ref.actor.clip_ratio_high=4e-4 actor_rollout_ref.actor.clip_ratio_c=10.0
)
actor_max_token_len_per_gpu=$(( (8192 + 2048) * 2 ))
declare -A SIZES=([30b]=8 [235b]=64)
WORLD=${SIZES[30b]}
python3 -m verl.trainer.main_ppo model_engine=megatron algorithm.adv_estimator=grpo "${gspo[@]}" data.train_files=t.parquet data.val_files=v.parquet \
 actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=16 \
 actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$actor_max_token_len_per_gpu \
 actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 actor_rollout_ref.actor.megatron.expert_model_parallel_size=$WORLD \
 actor_rollout_ref.actor.megatron.sequence_parallel=True actor_rollout_ref.actor.router_replay.mode=R2 \
 actor_rollout_ref.rollout.data_parallel_size=2 actor_rollout_ref.rollout.expert_parallel_size=8 actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
 +actor_rollout_ref.actor.optim.lr_decay_style=constant +actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload=True \
 +actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction=0.5 trainer.n_gpus_per_node=8 trainer.nnodes=2
