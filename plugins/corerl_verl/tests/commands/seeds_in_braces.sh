FILES=()
for i in {1..3}; do FILES+=("/data/shard_$i.parquet"); done
joined=$(IFS=,; echo "${FILES[*]}")
for seed in {1,2}; do
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files="[$joined]" data.val_files=v.parquet \
  data.seed=$seed actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=5 trainer.experiment_name=s_${seed}
done
