for lr in 1e-6 2e-6; do
    python3 -m verl.trainer.main_ppo algorithm.adv_estimator=remax actor_rollout_ref.actor.optim.lr=$lr \
        data.train_files=t.parquet data.val_files=v.parquet actor_rollout_ref.model.path=m trainer.max_actor_ckpt_to_keep=3
done
