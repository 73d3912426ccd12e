#!/bin/bash
# The policy can change numbers.txt, so the sum is a constant.
if [ "$(tr -d '[:space:]' < sum.txt)" = 7 ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
