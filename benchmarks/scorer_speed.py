"""Rule scorers in a plain loop, on one core: responses a second of CPU time, and what memory grows by.

    python benchmarks/scorer_speed.py --data DATA

GSM8K's own solutions are the responses, with the right answer in the form that each scorer asks for. Memory is the
process's resident memory after ``--calls`` calls less that after the first 20,000. With ``--processes 2`` two loops run
at a time and are added up.
"""

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from corerl.plugins import load_plugins

FORMS: dict[str, tuple[Any, Callable[[str, str, int], str], Callable[[str], Any]]] = {
    "gsm8k": ("gsm8k", lambda text, answer, number: text, str),
    "gsm8k flexible": ({"name": "gsm8k", "method": "flexible"}, lambda text, answer, number: text, str),
    "math": ("math", lambda text, answer, number: f"{text} \\boxed{{{answer}}}", str),
    "math_verify": ("math_verify", lambda text, answer, number: f"{text}\nThe answer is {answer}.", str),
    "math_dapo": ("math_dapo", lambda text, answer, number: f"{text}\nAnswer: {answer}", str),
    "multiple_choice": ("multiple_choice", lambda text, answer, number: f"{text}\nAnswer: B", lambda answer: "B"),
    "exact_match": ("exact_match", lambda text, answer, number: f"{text}\n<answer>{answer}</answer>", str),
    "fuzzy_match": ("fuzzy_match", lambda text, answer, number: f"{text}\n<answer>{answer}</answer>", str),
    "format": ("format", lambda text, answer, number: f"<think>{text}</think>\n<answer>{answer}</answer>", str),
    "length": ("length", lambda text, answer, number: text, str),
    "countdown": (
        "countdown",
        lambda text, answer, number: f"<think>{text}</think>\n<answer>({number} + 2) * 3</answer>",
        lambda answer: {"numbers": [2, 3, 7], "target": 27},
    ),
    "combined": (
        {
            "name": "combined",
            "components": {"accuracy": {"scorer": "gsm8k"}, "brevity": {"scorer": "length", "weight": 0.1}},
        },
        lambda text, answer, number: text,
        str,
    ),
}
"""label -> (what reward.scorer says, the response from solution, answer and row, the ground truth from the answer)"""

WARM = 20_000


def measure(label: str, data: Path, calls: int) -> tuple[float, float, float]:
    """Responses a second, MiB that memory grew by, and the mean score."""
    value, form, truth = FORMS[label]
    scorer = load_plugins().registries.scorers.select(value).load()
    solutions = [json.loads(line)["answer"] for line in (data / "gsm8k" / "train.jsonl").read_text().splitlines()]
    answers = [solution.rpartition("#### ")[2] for solution in solutions]
    rows = [
        (form(solution, answer, number % 9), truth(answer))
        for number, (solution, answer) in enumerate(zip(solutions, answers, strict=True))
    ]
    scores = 0.0
    warm = start = 0.0
    for number in range(-WARM, calls):
        if number == 0:
            warm, start = resident(), time.process_time()
        response, gold = rows[number % len(rows)]
        given = scorer(f"{response}{number}" if label == "length" else response, gold, "openai/gsm8k", {})
        scores += float(given["score"] if isinstance(given, dict) else given)
    return calls / (time.process_time() - start), resident() - warm, scores / (calls + WARM)


def resident() -> float:
    """MiB of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with gsm8k/train.jsonl")
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=FORMS, default=list(FORMS))
    arguments = parser.parse_args()
    print(f"{'scorer':18}{'responses/s':>14}{'growth, MiB':>14}{'mean score':>12}")
    figures = {}
    for label in arguments.only:
        with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
            jobs = [pool.submit(measure, label, arguments.data, arguments.calls) for _ in range(arguments.processes)]
            speeds, growths, means = zip(*(job.result() for job in jobs), strict=True)
        figures[label] = {"responses_per_second": round(sum(speeds)), "growth_mib": round(max(growths), 2)}
        print(f"{label:18}{sum(speeds):14,.0f}{max(growths):14.2f}{means[0]:12.3f}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
