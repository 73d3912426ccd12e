#!/bin/sh
# Games on an OpenEnv server train a tiny model on the CPU. Run this script from the root of the repository.
# OPENENV_PYTHON is a Python with openenv-core, by default the one of the run. Arguments are overrides of the last command.
set -eu
folder=runs/agents-openenv
mkdir -p "$folder"
rm -f "$folder/address"

# 1. The server; it ends with this script, also after Ctrl-C or a failure.
"${OPENENV_PYTHON:-python}" examples/agents-openenv/server.py "$folder/address" &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# 2. Data: games as seeds, and games of a careless player.
python examples/agents-openenv/data.py "$folder/data"

# 3. A random model of 140,000 parameters with its own tokenizer.
corerl tiny-model --out "$folder/model" --corpus "$folder/data/sft.parquet" --force \
    --vocab-size 300 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 --max-positions 128 \
    --rope-theta 100 --initializer-range 0.05

# 4. Cold start: imitate the player.
corerl sft examples/agents-openenv/sft.yaml

# 5. Reinforcement learning: the server rewards a found number.
waited=0
until [ -s "$folder/address" ]; do
    kill -0 "$server" 2>/dev/null || { echo "error: the server ended" >&2; exit 1; }
    [ "$waited" -lt 60 ] || { echo "error: the server did not start within 60 s" >&2; exit 1; }
    waited=$((waited + 1))
    sleep 1
done
corerl train examples/agents-openenv/config.yaml "rollout.multi_turn.environment.url=$(cat "$folder/address")" "$@"
