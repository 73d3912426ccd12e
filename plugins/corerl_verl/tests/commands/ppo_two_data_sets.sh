# PPO with a critic, warm-up of the critic and adaptive KL
gsm8k_train_path=$HOME/data/gsm8k/train.parquet
math_train_path=$HOME/data/math/train.parquet
train_files="['$gsm8k_train_path', '$math_train_path']"
test_files="['$HOME/data/gsm8k/test.parquet', '$HOME/data/math/test.parquet']"
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae algorithm.lam=0.95 algorithm.gamma=1.0 \
    algorithm.use_kl_in_reward=True algorithm.kl_penalty=low_var_kl \
    algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.kl_coef=0.01 algorithm.kl_ctrl.target_kl=0.1 algorithm.kl_ctrl.horizon=10000 \
    data.train_files="$train_files" data.val_files="$test_files" data.train_batch_size=1024 \
    data.max_prompt_length=1024 data.max_response_length=1024 data.filter_overlong_prompts=True data.truncation='error' \
    actor_rollout_ref.model.path=deepseek-ai/deepseek-llm-7b-chat actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_epochs=2 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.actor.fsdp_config.param_offload=False actor_rollout_ref.actor.fsdp_config.optimizer_offload=False \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.rollout.name=vllm \
    critic.optim.lr=1e-5 critic.optim.weight_decay=0.05 critic.model.use_remove_padding=True critic.model.path=deepseek-ai/deepseek-llm-7b-chat \
    critic.model.enable_gradient_checkpointing=True critic.ppo_micro_batch_size_per_gpu=32 critic.ppo_epochs=3 critic.grad_clip=0.5 \
    critic.ppo_mini_batch_size=128 critic.cliprange_value=0.3 critic.model.fsdp_config.param_offload=False critic.model.fsdp_config.optimizer_offload=True \
    trainer.critic_warmup=5 trainer.logger='["console","wandb"]' trainer.n_gpus_per_node=8 trainer.nnodes=1 \
    trainer.save_freq=20 trainer.test_freq=1 trainer.total_epochs=15 $@
