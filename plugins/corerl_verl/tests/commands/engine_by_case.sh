set -xeuo pipefail
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
case "${DEVICE}" in
    gpu) gpus=${NGPUS:-${GPUS:-8}} ;;
    npu) gpus=16 ;;
    *) echo "unknown" >&2; exit 1 ;;
esac
EXP=${EXP:-ppo_$(basename /models/Qwen3-8B)}
LAUNCH=(python3)
if [ "${USE_UV:-1}" != 0 ]; then
    uv sync --frozen
    LAUNCH=(uv run --frozen --no-sync python3)
fi
CRITIC=(critic.model.path=m critic.optim.lr=2e-5 critic.use_dynamic_bsz=True critic.fsdp.param_offload=False
        critic.megatron.tensor_model_parallel_size=2)
"${LAUNCH[@]}" -m verl.trainer.main_ppo algorithm.adv_estimator=gae data.train_files=t.parquet data.val_files=v.parquet \
    actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \
    "${CRITIC[@]}" trainer.n_gpus_per_node=${gpus} trainer.experiment_name=${EXP} model_engine=megatron "$@"
