#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
set -euxo pipefail
MODEL=/models/Qwen2.5-7B
srun --nodes=1 --ntasks=1 bash <<EOF
export VLLM_USE_V1=1
LR=2e-6
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_files=/data/t.parquet data.val_files=/data/v.parquet \\
    actor_rollout_ref.model.path=$MODEL actor_rollout_ref.actor.optim.lr=\${LR} \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 trainer.nnodes=4
EOF
