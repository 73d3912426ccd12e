CMD="python3 -m verl.trainer.main_ppo algorithm.adv_estimator=reinforce_plus_plus algorithm.gamma=0.99"
CMD="$CMD data.train_files=t.parquet data.val_files=v.parquet actor_rollout_ref.model.path=m"
CMD+=" actor_rollout_ref.rollout.val_kwargs.top_p=0.7 trainer.critic_warmup=5"
eval $CMD
