#!/bin/sh
# Tasks in Harbor's format train a tiny model on the CPU. Run this script from the root of the repository; it needs bubblewrap.
# Arguments are overrides of the last command.
set -eu

# 1. Data: rows that refer to the folders of tasks, and commands for the cold start.
corerl prepare harbor --path examples/agents-harbor/tasks --out runs/agents-harbor/data
python examples/agents-harbor/data.py runs/agents-harbor/data/sft.parquet

# 2. A random model of 150,000 parameters with its own tokenizer.
corerl tiny-model --out runs/agents-harbor/model --corpus runs/agents-harbor/data/sft.parquet --force \
    --vocab-size 400 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 --max-positions 192 \
    --rope-theta 100 --initializer-range 0.05

# 3. Cold start: imitate the commands, right and wrong.
corerl sft examples/agents-harbor/sft.yaml

# 4. Reinforcement learning: the tests of the tasks give the reward.
corerl train examples/agents-harbor/config.yaml "$@"
