#!/bin/sh
# A policy sees a grid as a picture in every turn, on the CPU. Run this script from the root of the repository.
# Arguments are overrides of the last command.
set -eu

# 1. Data: starts and goals as seeds.
corerl prepare grid-walk --out runs/vision-grid-walk/data --size 3 --sft-size 0 --test-size 32

# 2. A random model of the family Qwen2.5-VL, with a token for each move.
corerl tiny-vision-model --out runs/vision-grid-walk/model --force --words left,right,up,down

# 3. Reinforcement learning: moves towards the goal are rewarded.
corerl train examples/vision-grid-walk/config.yaml "$@"
