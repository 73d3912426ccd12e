cat <<EOF > config.txt
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae
EOF
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=t.parquet data.val_files=v.parquet \
  actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=16
