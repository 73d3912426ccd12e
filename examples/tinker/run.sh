#!/bin/sh
# Tinker's RL loop on the sums of examples/hasty-teacher, against a server of this machine. Run this script from the root of the
# repository. TINKER_PYTHON is an interpreter with `pip install tinker`. Arguments are options of rl.py.
set -eu
python=${TINKER_PYTHON:-python3}

# 1. The data and the cold start of examples/hasty-teacher.
if [ ! -f runs/hasty-teacher/cold-start/config.json ]; then
    corerl prepare arithmetic --out runs/hasty-teacher/data --operations + --min-operand 10 --max-operand 99 \
        --train-size 4000 --test-size 400 --sft-size 7000 --hasty 0.6
    corerl tiny-model --out runs/hasty-teacher/model --corpus runs/hasty-teacher/data/sft.parquet --force \
        --vocab-size 320 --hidden-size 64 --layers 2 --heads 4 --kv-heads 4 --intermediate-size 256 \
        --max-positions 64 --rope-theta 10 --initializer-range 0.05
    corerl sft examples/hasty-teacher/sft.yaml
fi

# 2. The server: this script gives the key, and ends it.
TINKER_API_KEY=tml-$("$python" -c 'import secrets; print(secrets.token_urlsafe(32))')
export TINKER_API_KEY TINKER_BASE_URL=http://127.0.0.1:8421
corerl serve --tinker runs/hasty-teacher/cold-start --port 8421 --api-key-env TINKER_API_KEY &
server=$!
trap 'kill -INT $server; wait $server' EXIT
"$python" - <<'PYTHON'
import os, time, urllib.request

for _ in range(600):  # a minute
    try:
        urllib.request.urlopen(urllib.request.Request(
            os.environ["TINKER_BASE_URL"] + "/api/v1/healthz", headers={"X-API-Key": os.environ["TINKER_API_KEY"]}
        ))
        break
    except OSError:
        time.sleep(0.1)
else:
    raise SystemExit("the server did not start within a minute")
PYTHON

# 3. The loop.
"$python" examples/tinker/rl.py --model runs/hasty-teacher/cold-start --at-least 0.9 "$@"
