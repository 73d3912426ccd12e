#!/usr/bin/env bash
set -euxo pipefail
clip_ratio_low=0.2; clip_ratio_high=0.28
buffer=True
buffer_len=$((1024 * 4))
bsz=512
gen_bsz=$((bsz * 3))
DATA=${DATA:-"${HOME}/verl"}
NNODES=${NNODES:-16}
ray job submit --no-wait --runtime-env="env.yaml" --working-dir "${PWD}" \
    -- python3 -m recipe.dapo.src.main_dapo \
    data.train_files="${DATA}/dapo.parquet" data.val_files="${DATA}/aime.parquet" data.prompt_key=prompt \
    data.truncation='left' data.max_prompt_length=2048 data.max_response_length=$((1024 * 20)) \
    data.gen_batch_size=${gen_bsz} data.train_batch_size=${bsz} actor_rollout_ref.rollout.n=16 \
    algorithm.adv_estimator=grpo algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc \
    algorithm.filter_groups.max_num_gen_batches=10 actor_rollout_ref.actor.clip_ratio_low=${clip_ratio_low} \
    actor_rollout_ref.actor.clip_ratio_high=${clip_ratio_high} actor_rollout_ref.model.path="${DATA}/Qwen2.5-32B" \
    +actor_rollout_ref.model.override_config.attention_dropout=0. actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.use_token_level_loss=True actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    reward_model.reward_manager=dapo custom_reward_function.overlong_buffer.enable=${buffer} \
    custom_reward_function.overlong_buffer.len=${buffer_len} custom_reward_function.overlong_buffer.penalty_factor=1.0 \
    trainer.logger=['console','wandb'] trainer.n_gpus_per_node=8 trainer.nnodes="${NNODES}"
