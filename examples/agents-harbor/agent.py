"""An agent of one step: the policy writes a shell command for the instruction, and the agent runs the command."""

import json
import os
import subprocess
import urllib.request
from pathlib import Path

chat = [{"role": "user", "content": Path("PROMPT.md").read_text().strip()}]
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "policy", "messages": chat}).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
with urllib.request.urlopen(request, timeout=30) as reply:
    command = json.load(reply)["choices"][0]["message"]["content"] or ""
print("$", command)
subprocess.run(["sh", "-c", command], timeout=5, check=False)
