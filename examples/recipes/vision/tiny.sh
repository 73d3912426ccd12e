#!/bin/sh
# Three steps of the recipe with a tiny random model, on the CPU. Run this script from the root of the repository.
# A random model solves nothing: the reward is that of tiny.py, which varies.
set -eu
folder=runs/recipes/vision
corerl prepare shapes --out $folder/data --train-size 32 --test-size 4
corerl tiny-vision-model --out $folder/model --force --words colour,shape,red,green,blue,yellow,circle,cross,triangle
corerl train examples/recipes/vision/config.yaml model.path=$folder/model model.dtype=fp32 \
    data.train_files=[$folder/data/train.parquet] data.val_files=[$folder/data/test.parquet] \
    data.train_batch_size=4 data.max_prompt_length=32 data.max_response_length=1 actor.device=cpu \
    actor.strategy='{name: torch, freeze_vision_tower: true}' actor.ppo_mini_batch_size=2 rollout.name=hf \
    'rollout.options={}' rollout.n=4 reward.scorer=./examples/recipes/tiny.py:varying 'runtime={name: local}' \
    trainer.offload_while_generating=false trainer.total_training_steps=3 trainer.output_dir=$folder/runs "$@"
