common() { printf '%s\n' algorithm.adv_estimator=grpo data.train_files=t.parquet data.val_files=v.parquet; }
mapfile -t COMMON < <(common)
readarray -t EXTRA <<< "trainer.total_epochs=3"
ARGS="actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=vllm"
if [[ ${USE_LORA:-0} == 1 ]]; then ARGS+=" actor_rollout_ref.model.lora_rank=8"; fi
[[ -n "${DEBUG:-}" ]] && ARGS="$ARGS trainer.total_training_steps=1"
read -r -d '' MORE <<'EOT' || true
actor_rollout_ref.rollout.n=6
trainer.save_freq=7
EOT
exec python -m verl.trainer.main_ppo "${COMMON[@]}" "${EXTRA[@]}" $ARGS $MORE
