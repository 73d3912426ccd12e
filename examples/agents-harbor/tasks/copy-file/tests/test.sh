#!/bin/bash
# Both files have the content that a.txt had at the start.
reward=1
for file in a.txt b.txt; do
    [ "$(cat "$file")" = "the content" ] || reward=0
done
echo $reward > /logs/verifier/reward.txt
