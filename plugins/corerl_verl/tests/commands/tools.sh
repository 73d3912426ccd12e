set -x
PROJECT_DIR="$(pwd)"
run() {
    python3 -m verl.trainer.main_ppo --config-path="$PROJECT_DIR/config" --config-name='my_multiturn' \
        algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=$1 actor_rollout_ref.rollout.n=16 "${@:2}"
}
run sglang_async data.train_files=t.parquet data.val_files=v.parquet actor_rollout_ref.model.path=m \
    actor_rollout_ref.rollout.multi_turn.enable=True actor_rollout_ref.rollout.multi_turn.max_assistant_turns=5 \
    actor_rollout_ref.rollout.multi_turn.tool_config_path="$PROJECT_DIR/tools.yaml" trainer.logger='["console","file"]'
