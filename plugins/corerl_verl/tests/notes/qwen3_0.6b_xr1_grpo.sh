# GRPO with Megatron and SGLang, two cards of 24 GB
set -x

USE_MBRIDGE=FALSE

python3 -m verl.trainer.main_ppo \
    --config-path=config \
    --config-name='ppo_megatron_trainer.yaml' \        # Megatron's template

    # === algorithm ===
    algorithm.adv_estimator=grpo \                      # GRPO
    algorithm.use_kl_in_reward=False \                  # no KL in the reward

    # === data ===
    data.train_files='./xr1-750/train.parquet' \        # 750 problems
    data.val_files='./xr1-750/test.parquet' \           # evaluation
    data.train_batch_size=4 \                           # 4 prompts a step
    data.max_prompt_length=512 \                        # tokens
    data.max_response_length=1024 \                     # tokens
    data.filter_overlong_prompts=True \                 # drop longer prompts
    data.truncation='error' \                           # no cut

    # === actor ===
    actor_rollout_ref.model.path="/data/Qwen3-0.6B-Base" \  # base model
    actor_rollout_ref.actor.optim.lr=1e-6 \                  # learning rate
    actor_rollout_ref.model.use_remove_padding=True \        # no padding
    actor_rollout_ref.actor.ppo_mini_batch_size=2 \          # mini-batch = 2
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \ # micro-batch = 2
    actor_rollout_ref.actor.use_kl_loss=True \               # KL in the loss
    actor_rollout_ref.actor.kl_loss_coef=0.001 \             # its coefficient
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \        # its estimate
    actor_rollout_ref.actor.entropy_coeff=0 \                # no entropy
    ++actor_rollout_ref.model.enable_gradient_checkpointing=True \  # less memory

    # === Megatron of the actor ===
    actor_rollout_ref.actor.strategy="megatron" \            # Megatron trains
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \  # TP=2
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1 \  # PP=1
    actor_rollout_ref.actor.megatron.context_parallel_size=1 \  # CP=1
    actor_rollout_ref.actor.megatron.use_mbridge=$USE_MBRIDGE \  # no bridge

    # === rollout ===
    actor_rollout_ref.rollout.name=sglang \                  # SGLang generates
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \ # TP=2
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \   # half of the memory
    actor_rollout_ref.rollout.n=8 \                          # 8 responses a prompt
    actor_rollout_ref.rollout.mode=async \                   # asynchronous
    actor_rollout_ref.rollout.val_kwargs.do_sample=True \    # evaluation samples, too
    actor_rollout_ref.rollout.load_format=auto \             # format of the weights
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 \  # micro-batch of log-probs

    # === reference ===
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2 \  # its micro-batch

    # === trainer ===
    trainer.critic_warmup=0 \                               # no critic
    trainer.logger='["console","wandb"]' \                  # trackers
    trainer.project_name='verl_grpo_xr1750' \               # project
    trainer.experiment_name='qwen3_0dot6B_RL_Zero' \        # experiment
    trainer.n_gpus_per_node=2 \                             # GPUs
    trainer.nnodes=1 \                                      # one node
    trainer.save_freq=50 \                                  # checkpoints
    trainer.test_freq=20 \                                  # evaluations
    trainer.total_epochs=2                                  # epochs
