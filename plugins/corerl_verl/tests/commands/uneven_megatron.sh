#!/usr/bin/env bash
# A pipeline with a short first and last stage, adapters of Megatron, and the schedule WSD.
set -xeuo pipefail
MEGATRON=actor_rollout_ref.actor.megatron
OVERRIDES=(
    +$MEGATRON.override_transformer_config.pipeline_model_parallel_layout="'Et*9|t*10|t*10|t*7L'"
    +$MEGATRON.override_transformer_config.recompute_granularity=full
    +$MEGATRON.override_transformer_config.recompute_method=uniform
    +$MEGATRON.override_transformer_config.recompute_num_layers=1
    +$MEGATRON.override_transformer_config.attention_backend=flash
    +$MEGATRON.override_ddp_config.overlap_grad_reduce=True
)
python3 -m verl.trainer.main_ppo \
    model_engine=megatron \
    algorithm.adv_estimator=grpo \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.train_batch_size=256 \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.model.lora.rank=32 \
    actor_rollout_ref.model.lora.alpha=64 \
    actor_rollout_ref.model.lora.merge=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.optim.lr=1e-5 \
    actor_rollout_ref.actor.optim.clip_grad=0.5 \
    actor_rollout_ref.actor.optim.lr_decay_style=WSD \
    actor_rollout_ref.actor.optim.lr_wsd_decay_style=cosine \
    actor_rollout_ref.actor.optim.lr_wsd_decay_steps=20 \
    $MEGATRON.tensor_model_parallel_size=2 \
    $MEGATRON.pipeline_model_parallel_size=4 \
    "${OVERRIDES[@]}" \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    trainer.total_training_steps=200 \
    trainer.logger='["console","tensorboard"]' \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 "$@"
