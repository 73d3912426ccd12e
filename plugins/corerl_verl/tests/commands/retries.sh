MAX=3; n=0
until [ $n -ge $MAX ]
do
  torchrun --standalone --nproc_per_node=1 -m verl.trainer.main_ppo algorithm.adv_estimator=remax data.train_files=t.parquet data.val_files=v.parquet \
   actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=hf actor_rollout_ref.actor.optim.lr=1e-6 custom_reward_function.path=./r.py trainer.n_gpus_per_node=1 trainer.nnodes=1 \
   actor_rollout_ref.rollout.tensor_model_parallel_size=1 && break
  n=$((n+1))
done
