#!/bin/sh
# step.sh NAME COMMAND…: run the command; print its name now, and every 4 seconds that it still runs.
set -u
name=$1
shift
echo "installing $name"
"$@" &
command=$!
began=$(date +%s)
while sleep 4 >/dev/null 2>&1; do echo "installing $name: $(($(date +%s) - began)) s"; done &
clock=$!
trap 'kill $command $clock 2>/dev/null; exit 130' INT TERM
wait $command
code=$?
kill $clock
wait $clock 2>/dev/null
exit $code
