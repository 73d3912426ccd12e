set -x   # prints each command
MBRIDGE=FALSE
python3 -m verl.trainer.main_ppo \
    --config-path=config \
    --config-name='ppo_megatron_trainer.yaml' \   # Megatron's template

    # === data ===
    data.train_files='./train.parquet' \           # 750 problems
    data.val_files='./test.parquet' \
    data.train_batch_size=4 data.max_response_length=1024 \
    algorithm.adv_estimator=grpo \                 # no critic
    # === model ===
    actor_rollout_ref.model.path="/data/Qwen3-0.6B-Base" \
    ++actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.strategy="megatron" actor_rollout_ref.actor.ppo_mini_batch_size=2 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \
    actor_rollout_ref.actor.megatron.use_mbridge=$MBRIDGE actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.val_kwargs.do_sample=True actor_rollout_ref.rollout.val_kwargs.temperature=0.6 \
    actor_rollout_ref.rollout.max_num_seqs=64 actor_rollout_ref.rollout.max_num_batched_tokens=8192 \
    trainer.n_gpus_per_node=2 trainer.test_freq=20 trainer.total_epochs=2    # the end
