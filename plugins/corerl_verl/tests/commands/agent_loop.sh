#!/usr/bin/env bash
# A loop of the user's own class beside tools, with weights of the step before.
set -x
HERE=$(cd "$(dirname "$0")" && pwd)
AGENT=(
    actor_rollout_ref.rollout.agent.agent_loop_config_path="$HERE/loops.yaml"
    actor_rollout_ref.rollout.agent.default_agent_loop=debate
    actor_rollout_ref.rollout.agent.num_workers=4
    +actor_rollout_ref.rollout.agent.rounds=3
    actor_rollout_ref.rollout.multi_turn.enable=True
    actor_rollout_ref.rollout.multi_turn.tool_config_path="$HERE/tools.yaml"
    actor_rollout_ref.rollout.multi_turn.max_user_turns=3
    actor_rollout_ref.rollout.multi_turn.max_tool_response_length=1024
    actor_rollout_ref.rollout.multi_turn.format=gpt-oss
)
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=rloo \
    data.train_files=$HOME/data/debates/train.parquet \
    data.val_files=$HOME/data/debates/test.parquet \
    data.return_raw_chat=True \
    data.train_batch_size=64 \
    actor_rollout_ref.model.path=openai/gpt-oss-20b \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.rollout.name=sglang \
    actor_rollout_ref.rollout.n=8 \
    +actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=triton \
    custom_reward_function.path=$HERE/reward.py \
    reward.reward_model.enable=True \
    reward.reward_model.model_path=Qwen/Qwen3-8B \
    reward.reward_model.rollout.name=sglang \
    reward.reward_model.rollout.tensor_model_parallel_size=2 \
    trainer.v1.trainer_mode=colocate_async \
    trainer.v1.colocate_async.num_warmup_batches=1 \
    trainer.logger=console \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 \
    trainer.total_epochs=1
