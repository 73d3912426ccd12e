#!/bin/sh
# An example's student with a sampler whose matrices are rounded (docs/algorithms/rollout_correction.md), after its run.sh:
# quickstart or hasty-teacher. Prints rounding, correction, seed and validation accuracy; the runs are in runs/EXAMPLE-*.
# Usage: benchmarks/sampler_precision.sh EXAMPLE "int8 int4" "none token sequence" "0 1 2"
set -eu
for seed in $4; do for rounding in $2; do for correction in $3; do
    name="$1-$rounding-$correction-$seed"
    corerl train "examples/$1/config.yaml" trainer.seed="$seed" trainer.test_freq=-1 \
        trainer.val_before_train=false trainer.resume_mode=disable tracking.experiment_name="$name" \
        tracking.loggers='[]' rollout.options.quantization="$rounding" \
        algorithm.rollout_correction.rollout_is="$correction" \
        algorithm.rollout_correction.bypass_mode=false \
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
