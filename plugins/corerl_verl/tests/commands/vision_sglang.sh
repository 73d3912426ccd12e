ENGINE=${1:-sglang}
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
 data.train_files=$HOME/data/geo3k/train.parquet data.val_files=$HOME/data/geo3k/test.parquet data.train_batch_size=512 \
 data.max_prompt_length=1024 data.max_response_length=2048 data.filter_overlong_prompts=True data.truncation=error data.image_key=images \
 data.filter_overlong_prompts_workers=64 +data.mm_processor_kwargs.max_pixels=1003520 \
 actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.model.use_fused_kernels=True \
 actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=10 actor_rollout_ref.actor.use_kl_loss=True \
 actor_rollout_ref.actor.kl_loss_coef=0.01 actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.entropy_coeff=0 \
 actor_rollout_ref.rollout.name=$ENGINE actor_rollout_ref.rollout.limit_images=4 actor_rollout_ref.rollout.n=5 \
 +actor_rollout_ref.rollout.engine_kwargs.sglang.mm_attention_backend=fa3 +actor_rollout_ref.rollout.engine_kwargs.sglang.chunked_prefill_size=4096 \
 actor_rollout_ref.rollout.enforce_eager=False actor_rollout_ref.rollout.free_cache_engine=True actor_rollout_ref.actor.checkpoint.save_contents="['model','hf_model','optimizer','extra']" \
 algorithm.use_kl_in_reward=False trainer.logger="['console','wandb','file']" trainer.total_epochs=15 trainer.save_freq=20 trainer.test_freq=5
