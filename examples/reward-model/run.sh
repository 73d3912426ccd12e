#!/bin/sh
# A reward model, and a policy that learns from it, on the CPU, in seconds. Run this script from the root of the repository.
# Arguments are overrides of the last command.
set -eu
folder=runs/greetings

# 1. to 3. Data, a random model and its cold start, as in examples/dpo/run.sh.
python examples/dpo/data.py "$folder/data"
corerl tiny-model --out "$folder/model" --corpus "$folder/data/sft.jsonl" --force \
    --vocab-size 300 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 --max-positions 64 \
    --rope-theta 100 --initializer-range 0.05
corerl sft examples/dpo/sft.yaml

# 4. The reward model: polite answers get the higher reward.
corerl reward-model examples/reward-model/reward_model.yaml

# 5. Reinforcement learning: the reward is that of the model.
corerl train examples/reward-model/config.yaml "$@"
