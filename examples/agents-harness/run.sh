#!/bin/sh
# The commands of the example. Run this script from the root of the repository. Arguments are overrides of the last command.
set -eu

# 1. Data: sums. Only their prompts are used.
corerl prepare arithmetic --out runs/agents-harness/data --operations + --train-size 256 --test-size 8 --sft-size 64

# 2. A random model with its own tokenizer.
corerl tiny-model --out runs/agents-harness/model --corpus runs/agents-harness/data/sft.parquet --force \
    --vocab-size 320 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 --max-positions 256

# 3. Reinforcement learning.
corerl train examples/agents-harness/config.yaml "$@"
