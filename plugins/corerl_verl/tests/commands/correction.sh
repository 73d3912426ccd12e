python3 -m recipe.dapo.main_dapo algorithm.adv_estimator=grpo data.train_files=t.parquet data.val_files=v.parquet \
    algorithm.rollout_correction.rollout_is=sequence algorithm.rollout_correction.rollout_is_threshold=2.0 \
    algorithm.rollout_correction.rollout_rs=seq_mean_k1 algorithm.rollout_correction.rollout_rs_threshold=0.99_1.01 \
    actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.calculate_log_probs=True actor_rollout_ref.actor.clip_ratio_c=10.0
