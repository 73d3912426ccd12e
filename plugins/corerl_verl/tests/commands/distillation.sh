#!/usr/bin/env bash
# Two teachers, one for each data source, and a step that trainer v1 fetches prompt by prompt.
set -euo pipefail
STUDENT=${STUDENT:-Qwen/Qwen3-1.7B}
TEACHERS=(
    +distillation.teacher_models.sums.key=openai/gsm8k
    +distillation.teacher_models.sums.model_path=Qwen/Qwen3-8B
    +distillation.teacher_models.sums.inference.tensor_model_parallel_size=2
    +distillation.teacher_models.shapes.key=hiyouga/geometry3k
    +distillation.teacher_models.shapes.model_path=Qwen/Qwen3-VL-8B-Instruct
)
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="['$HOME/data/gsm8k/train.parquet','$HOME/data/geo3k/train.parquet']" \
    data.val_files="$HOME/data/gsm8k/test.parquet" \
    data.gen_batch_size=1 \
    data.train_batch_size=128 \
    data.max_prompt_length=1024 \
    data.max_response_length=2048 \
    actor_rollout_ref.model.path="$STUDENT" \
    actor_rollout_ref.model.lora_rank=0 \
    actor_rollout_ref.model.lora_alpha=0 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=1 \
    +actor_rollout_ref.rollout.cudagraph_capture_sizes=[1,2,4,8] \
    distillation.enabled=True \
    distillation.n_gpus_per_node=4 \
    "${TEACHERS[@]}" \
    distillation.distillation_loss.loss_mode=forward_kl_topk \
    distillation.distillation_loss.topk=64 \
    distillation.distillation_loss.use_task_rewards=False \
    distillation.distillation_loss.use_policy_gradient=False \
    trainer.v1.trainer_mode=sync \
    trainer.log_val_generations=-1 \
    trainer.logger='["console"]' \
    trainer.n_gpus_per_node=8 \
    trainer.total_epochs=2 \
