#!/bin/bash
# The policy can change list.txt, so the number is a constant.
if [ "$(tr -d '[:space:]' < count.txt)" = 3 ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
