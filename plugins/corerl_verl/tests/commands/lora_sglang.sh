python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=t.parquet data.val_files=v.parquet \
    data.shuffle=False data.train_batch_size=64 actor_rollout_ref.model.path=m actor_rollout_ref.model.lora_rank=32 \
    actor_rollout_ref.model.lora_alpha=64 actor_rollout_ref.model.target_modules=all-linear \
    actor_rollout_ref.model.enable_gradient_checkpointing=False actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.load_format=safetensors \
    actor_rollout_ref.rollout.layered_summon=True actor_rollout_ref.rollout.n=5 \
    +actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3 \
    actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=4 trainer.test_freq=false trainer.resume_mode=null
