ENGINE=${1:-vllm}
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=t.parquet data.val_files=v.parquet \
    data.image_key=images actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=$ENGINE \
    actor_rollout_ref.rollout.n=5 actor_rollout_ref.actor.freeze_vision_tower=True \
    +actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True \
    actor_rollout_ref.rollout.enable_chunked_prefill=False actor_rollout_ref.rollout.free_cache_engine=False \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=mse
