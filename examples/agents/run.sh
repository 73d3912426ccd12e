#!/bin/sh
# An agent with a tool learns on the CPU. Run this script from the root of the repository.
# Arguments are overrides of the last command.
set -eu

# 1. Data: products of two-digit numbers. In sft.parquet a teacher calls the calculator in 40% of the conversations, and
#    guesses in the others.
corerl prepare tool-arithmetic --out runs/agents/data

# 2. A random model of 150,000 parameters, whose chat template shows tools.
corerl tiny-model --out runs/agents/model --corpus runs/agents/data/sft.parquet --corpus examples/agents/tools.jsonl \
    --tools --force --vocab-size 400 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 \
    --max-positions 192 --rope-theta 100 --initializer-range 0.05

# 3. Cold start: imitate the teacher.
corerl sft examples/agents/sft.yaml

# 4. Reinforcement learning: only exact answers are rewarded, so the policy learns to call the calculator.
corerl train examples/agents/config.yaml "$@"
