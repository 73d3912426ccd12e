#!/bin/sh
# Direct preference optimization of a tiny model on the CPU, in seconds. Run this script from the root of the repository.
# Arguments are overrides of the last command: loss=ipo takes another loss.
set -eu
folder=runs/greetings

# 1. Data: greetings, polite or rude.
python examples/dpo/data.py "$folder/data"

# 2. A random model of 140,000 parameters with its own tokenizer.
corerl tiny-model --out "$folder/model" --corpus "$folder/data/sft.jsonl" --force \
    --vocab-size 300 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 --max-positions 64 \
    --rope-theta 100 --initializer-range 0.05

# 3. Cold start: half of the answers are rude.
corerl sft examples/dpo/sft.yaml

# 4. Preferences: the share of pairs whose polite answer gains more probability rises from 0.5 to 1.
corerl dpo examples/dpo/dpo.yaml "$@"
