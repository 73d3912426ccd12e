python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo data.train_files=t.parquet data.val_files=v.parquet \
    actor_rollout_ref.model.path=m actor_rollout_ref.rollout.n=4 reward_model.reward_manager=batch \
    custom_reward_function.path=./reward.py custom_reward_function.name=scores trainer.save_freq=0
