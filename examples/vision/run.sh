#!/bin/sh
# The commands of docs/vision.md. Run this script from the root of the repository.
# Arguments are overrides of the last command: actor.device=cuda trains on a GPU.
set -eu

# 1. Data: pictures of 32 x 32 pixels with one shape each, and a question about its colour or its shape.
corerl prepare shapes --out runs/vision/data

# 2. A random model of the family Qwen2.5-VL, with a token for each answer.
corerl tiny-vision-model --out runs/vision/model --force \
    --words colour,shape,red,green,blue,yellow,circle,cross,triangle

# 3. Reinforcement learning: only right answers are rewarded.
corerl train examples/vision/config.yaml "$@"
