#!/bin/sh
# An agent that walks on a grid learns the way on the CPU. Run this script from the root of the repository.
# Arguments are overrides of the last command.
set -eu

# 1. Data: starts and goals as seeds. In sft.parquet a teacher goes towards the goal in 30% of the moves, else anywhere.
corerl prepare grid-walk --out runs/agents-grid-walk/data --good 0.3 --moves 6

# 2. A random model of 150,000 parameters with its own tokenizer.
corerl tiny-model --out runs/agents-grid-walk/model --corpus runs/agents-grid-walk/data/sft.parquet --force \
    --vocab-size 320 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 --max-positions 256 \
    --rope-theta 100 --initializer-range 0.05

# 3. Cold start: imitate the teacher.
corerl sft examples/agents-grid-walk/sft.yaml

# 4. Reinforcement learning: only a reached goal is rewarded.
corerl train examples/agents-grid-walk/config.yaml "$@"
