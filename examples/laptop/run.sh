#!/bin/sh
# A pretrained model learns word problems on a laptop. Run this script from the root of the repository.
# Arguments are overrides of the training: model.path=FOLDER takes a model that is on the disk.
set -eu

# 1. Data: word problems of one step. Names, things and pairs of numbers of the test are in no training row.
python examples/laptop/data.py runs/laptop/data

# 2. Reinforcement learning; the accuracy on the test is printed before, during and after it.
corerl train examples/laptop/config.yaml trainer.output_dir=runs/laptop/runs "$@"

# 3. The trained model as a folder of Hugging Face, and a server for any client of OpenAI's API, until Ctrl-C.
run=$(ls -d runs/laptop/runs/laptop/* | tail -n 1)
rm -rf runs/laptop/model
corerl export "$run" --out runs/laptop/model
corerl serve runs/laptop/model
