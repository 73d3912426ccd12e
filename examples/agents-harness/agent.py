"""A scripted agent that knows OPENAI_BASE_URL and OPENAI_API_KEY alone. It asks twice and keeps both answers."""

import json
import os
import urllib.request
from pathlib import Path


def ask(messages: list[dict[str, str]]) -> str:
    """One request of OpenAI's chat completions."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages, "max_tokens": 8}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"] or "")


messages = [{"role": "user", "content": Path("PROMPT.md").read_text().strip()}]
answers = []
for _ in range(2):
    answers.append(ask(messages))
    messages += [{"role": "assistant", "content": answers[-1]}, {"role": "user", "content": "More."}]
Path("answer.txt").write_text("\n".join(answers) + "\n")
print(f"{len(answers)} answers, {sum(map(len, answers))} characters")
