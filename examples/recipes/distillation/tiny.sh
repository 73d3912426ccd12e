#!/bin/sh
# Three steps of the recipe with a tiny random model, on the CPU. Run this script from the root of the repository.
set -eu
folder=runs/recipes/distillation
corerl prepare arithmetic --out $folder/data --train-size 64 --test-size 8
corerl tiny-model --out $folder/model --corpus $folder/data/train.parquet --force --vocab-size 300 --hidden-size \
    16 --layers 1 --heads 2 --kv-heads 1 --max-positions 1024
corerl tiny-model --out $folder/teacher --corpus $folder/data/train.parquet --force --vocab-size 300 \
    --hidden-size 32 --seed 1 --layers 1 --heads 2 --kv-heads 1 --max-positions 1024
corerl train examples/recipes/distillation/config.yaml model.path=$folder/model model.dtype=fp32 \
    data.train_files=[$folder/data/train.parquet] data.val_files=[$folder/data/test.parquet] \
    data.train_batch_size=4 data.max_prompt_length=64 data.max_response_length=8 actor.device=cpu \
    actor.strategy=torch actor.ppo_mini_batch_size=2 actor.policy_loss.teacher=$folder/teacher rollout.name=hf \
    'rollout.options={}' rollout.n=1 'runtime={name: local}' trainer.offload_while_generating=false \
    trainer.total_training_steps=3 trainer.output_dir=$folder/runs "$@"
