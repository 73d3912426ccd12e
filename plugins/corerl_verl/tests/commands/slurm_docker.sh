#!/bin/bash
#SBATCH --job-name=verl
#SBATCH --nodes=2
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=($nodes)
head_node=${nodes_array[0]}
port=6379
srun --nodes=1 --ntasks=1 -w "$head_node" docker exec c ray start --head --port=$port &
sleep 10
worker_num=$((SLURM_JOB_NUM_NODES - 1))
for ((i = 1; i <= worker_num; i++)); do
  node_i=${nodes_array[$i]}
  srun --nodes=1 -w "$node_i" ray start --address x &
done
PYTHONUNBUFFERED=1 srun --overlap --nodes=1 --ntasks=1 -w "$head_node" docker exec "${CONTAINER}" \
  python3 -m verl.trainer.main_ppo \
  "data.train_files=/data/t.parquet" "data.val_files=/data/v.parquet" "data.train_batch_size=1024" \
  "actor_rollout_ref.model.path=m" "actor_rollout_ref.actor.optim.lr=1e-6" "actor_rollout_ref.rollout.name=vllm" \
  "algorithm.kl_ctrl.kl_coef=0.0001" "critic.optim.lr=1e-5" "critic.model.path=m" "trainer.nnodes=${SLURM_NNODES}" "trainer.n_gpus_per_node=${SLURM_GPUS_PER_NODE}"
