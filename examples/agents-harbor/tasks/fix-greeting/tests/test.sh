#!/bin/bash
# Two parts: the program still runs, and prints the right word.
printed=$(timeout 5 sh greet.sh) && runs=1 || runs=0
if [ "$printed" = hello ]; then right=1; else right=0; fi
printf '{"reward": %s, "runs": %s}\n' $right $runs > /logs/verifier/reward.json
