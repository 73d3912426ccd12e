#!/bin/sh
# Tasks of the library verifiers 0.4 train a tiny model on the CPU. Run this script from the root of the repository.
# Arguments are overrides of the last command.
set -eu
export PYTHONPATH="examples/agents-verifiers${PYTHONPATH:+:$PYTHONPATH}" # the library imports a taskset by its name

# 1. Data: rows that name a task each, and chats of a teacher who often guesses.
corerl prepare verifiers --taskset days --train-size 150 --test-size 32 --out runs/agents-verifiers/data
python examples/agents-verifiers/data.py runs/agents-verifiers/data/sft.parquet

# 2. A random model of 150,000 parameters with its own tokenizer.
corerl tiny-model --out runs/agents-verifiers/model --corpus runs/agents-verifiers/data/sft.parquet --force \
    --vocab-size 320 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 --max-positions 128 \
    --rope-theta 100 --initializer-range 0.05

# 3. Cold start: imitate the teacher.
corerl sft examples/agents-verifiers/sft.yaml

# 4. Reinforcement learning: the library plays the episodes, and its rewards are trained.
corerl train examples/agents-verifiers/config.yaml "$@"
