L=2048
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=a.parquet data.val_files=b.parquet \
  data.max_response_length=$L reward.reward_manager.name=dapo \
  +reward.reward_kwargs.overlong_buffer_cfg='{enable:True,len:512,penalty_factor:0.5,log:False}' \
  +reward.reward_kwargs.max_resp_len=$((L / 2)) actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.model.path=m
