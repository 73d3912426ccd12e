#!/bin/sh
# The quickstart with a teacher who rounds most answers down. Run this script from the root of the repository.
# Arguments are overrides of the last command: actor.device=cuda trains on a GPU.
set -eu

# One thread: see examples/quickstart/run.sh.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# 1. Data: two-digit sums. No problem of test.parquet is in the other files, in either order. The demonstrations in
#    sft.parquet come from a hasty teacher, who rounds 60% of the answers down to a multiple of ten.
corerl prepare arithmetic --out runs/hasty-teacher/data --operations + --min-operand 10 --max-operand 99 \
    --train-size 4000 --test-size 400 --sft-size 7000 --hasty 0.6

# 2. A random model of 150,000 parameters with its own tokenizer.
corerl tiny-model --out runs/hasty-teacher/model --corpus runs/hasty-teacher/data/sft.parquet --force \
    --vocab-size 320 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 \
    --max-positions 64 --rope-theta 10 --initializer-range 0.05

# 3. Cold start: imitate the teacher, right and wrong.
corerl sft examples/hasty-teacher/sft.yaml

# 4. Reinforcement learning: only exact answers are rewarded.
corerl train examples/hasty-teacher/config.yaml "$@"
