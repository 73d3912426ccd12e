# the script writes another one, and submits it
LR=${LR:-1e-6}
cat > /tmp/job.sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=2
export N=16
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo data.train_files=[/data/a.parquet,/data/b.parquet] \\
    data.val_files=v.parquet actor_rollout_ref.model.path=m actor_rollout_ref.actor.optim.lr=$LR \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=\$N trainer.nnodes=2
EOF
sbatch --parsable /tmp/job.sbatch
