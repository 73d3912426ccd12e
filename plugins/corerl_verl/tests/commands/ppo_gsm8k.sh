PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo \
 data.train_files=$HOME/gsm8k/train.parquet data.val_files=$HOME/gsm8k/test.parquet \
 data.train_batch_size=256 data.max_prompt_length=512 data.max_response_length=256 \
 actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.actor.optim.lr=1e-6 \
 actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
 critic.optim.lr=1e-5 critic.model.path=Qwen/Qwen2.5-0.5B-Instruct critic.ppo_micro_batch_size_per_gpu=4 \
 critic.model.fsdp_config.param_offload=True critic.cliprange_value=0.4 \
 algorithm.kl_ctrl.kl_coef=0.001 algorithm.use_kl_in_reward=True trainer.logger=console trainer.n_gpus_per_node=1 \
 trainer.nnodes=1 trainer.save_freq=10 trainer.test_freq=10 trainer.total_epochs=15 2>&1 | tee log.txt
