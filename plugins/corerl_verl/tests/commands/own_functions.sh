ROOT=$(pwd)
python3 -u -m verl.trainer.main_ppo algorithm.adv_estimator=gdpo +algorithm.gdpo_reward_keys='["accuracy", "format"]' \
    data.train_files=t.parquet data.val_files=v.parquet data.custom_cls.path=$ROOT/my_data.py data.custom_cls.name=MyData \
    +data.apply_chat_template_kwargs.enable_thinking=False actor_rollout_ref.model.path=m actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.rollout.name=vllm reward.custom_reward_function.path="$ROOT/reward.py" \
    reward.custom_reward_function.name=score +reward.custom_reward_function.reward_kwargs.weight=0.5 \
    reward.reward_manager.name=gdpo ~critic.checkpoint
