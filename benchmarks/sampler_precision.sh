#!/bin/sh
# The hasty teacher's student with a sampler whose matrices are rounded (docs/algorithms/rollout_correction.md), after
# `sh examples/hasty-teacher/run.sh`. Prints rounding, correction, seed and validation accuracy; the runs are in runs/precision-*.
# Usage: benchmarks/sampler_precision.sh "int8 int4" "none token sequence" "0 1 2"
set -eu
for seed in $3; do for rounding in $1; do for correction in $2; do
    name="precision-$rounding-$correction-$seed"
    corerl train examples/hasty-teacher/config.yaml trainer.seed="$seed" trainer.test_freq=-1 \
        trainer.val_before_train=false trainer.resume_mode=disable tracking.experiment_name="$name" \
        tracking.loggers='[]' rollout.options.quantization="$rounding" \
        algorithm.rollout_correction.rollout_is="$correction" \
        algorithm.rollout_correction.max_log_prob_diff=.inf >"runs/$name.log" 2>&1
    python - "$name" "$rounding $correction $seed" <<'PYTHON'
import json, pathlib, sys

[*_, folder] = sorted(pathlib.Path("runs", sys.argv[1]).iterdir())
steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
seen = {name: value for step in steps for name, value in step.items()}
[score] = [value for name, value in seen.items() if name.startswith("val-core/") and "/reward/" in name]
kl = [step["rollout_corr/k3_kl"] for step in steps if "rollout_corr/k3_kl" in step]
print(sys.argv[2], f"accuracy {score:.3f}", f"k3 {sum(kl) / len(kl):.5f} nats a token", flush=True)
PYTHON
done; done; done
