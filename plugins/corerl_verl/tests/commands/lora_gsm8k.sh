nproc_per_gpu=116
total_procs=$(( nproc_per_gpu * ${NGPU:-1} ))
mini_batch_size=$total_procs
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo trainer.val_before_train=False \
    data.train_files=$HOME/data/gsm8k/train.parquet data.val_files=$HOME/data/gsm8k/test.parquet \
    data.train_batch_size=$total_procs data.val_batch_size=$total_procs data.max_prompt_length=512 data.max_response_length=1024 \
    data.filter_overlong_prompts=True data.truncation='error' data.shuffle=False \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.model.use_shm=True \
    actor_rollout_ref.model.lora_rank=64 actor_rollout_ref.model.lora_alpha=32 actor_rollout_ref.model.target_modules=[q_proj,v_proj] \
    actor_rollout_ref.model.lora.merge=False \
    actor_rollout_ref.actor.optim.lr=3e-5 actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=$mini_batch_size actor_rollout_ref.actor.ppo_micro_batch_size=$mini_batch_size \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.rollout.log_prob_micro_batch_size=$mini_batch_size actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.1 actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.max_num_seqs=512 actor_rollout_ref.rollout.max_model_len=1536 actor_rollout_ref.rollout.max_num_batched_tokens=1536 \
    actor_rollout_ref.rollout.enable_chunked_prefill=False actor_rollout_ref.rollout.load_format=safetensors actor_rollout_ref.rollout.layered_summon=True \
    actor_rollout_ref.ref.log_prob_micro_batch_size=$mini_batch_size actor_rollout_ref.ref.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.entropy_coeff=0.001 algorithm.kl_ctrl.kl_coef=0.001 trainer.critic_warmup=0 trainer.n_gpus_per_node=${NGPU:-1} trainer.nnodes=1 \
    trainer.save_freq=20 trainer.test_freq=5 trainer.total_epochs=1 2>&1 | tee verl_demo.log
