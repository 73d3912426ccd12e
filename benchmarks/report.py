"""``report.html`` of a long run: its size, and how long a browser takes until its first charts are drawn.

A run folder of ``--steps`` steps is made up, with as many metrics as a real run has and sample rollouts, of which
``--samples`` go into the page with their tokens. Needs Chromium.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from corerl_testing.browser import open_browser
from corerl_tools.evaluation.files import write_rows
from corerl_tools.report.command import make_report

MOST_SECONDS, MOST_MEGABYTES = 2.0, 20.0
GROUP, GROUPS, TOKENS = 5, 4, 200
PARTS = ("gen", "reward", "handover", "old_log_prob", "ref", "values", "adv", "update_actor", "update_weights")
SPREADS = ("critic/score", "critic/rewards", "critic/advantages", "critic/returns", "response_length", "prompt_length")
WORDS = (
    "so",
    "we",
    "add",
    "the",
    "two",
    "numbers",
    "and",
    "carry",
    "one",
    "then",
    "sum",
    "is",
    "answer",
    "check",
    "digit",
)


def metrics(steps: int, random: np.random.Generator) -> list[dict[str, float]]:
    """Curves of the shape that training has: a rise to a plateau, noise, now and then a spike."""
    records = []
    for step in range(1, steps + 1):
        progress = 1 - math.exp(-4 * step / steps)
        noise = random.normal(size=64)
        record: dict[str, float] = {"step": step}
        for number, name in enumerate(SPREADS):
            mean = progress + 0.05 * noise[number]
            record |= {f"{name}/mean": mean, f"{name}/max": mean + 1, f"{name}/min": mean - 1}
        seconds = {part: abs(1 + 0.1 * noise[20 + number]) * (number + 1) for number, part in enumerate(PARTS)}
        seconds["step"] = sum(seconds.values()) * 1.01
        record |= {f"timing_s/{part}": value for part, value in seconds.items()}
        record |= {f"timing_per_token_ms/{part}": value / 100 for part, value in seconds.items()}
        for number, name in enumerate(("pg_loss", "kl_loss", "entropy", "ppo_kl", "grad_norm", "pg_clipfrac", "lr")):
            record[f"actor/{name}"] = abs(0.1 * noise[40 + number]) * (50 if noise[50 + number] > 3.5 else 1)
        record |= {"perf/throughput": 4000 + 200 * noise[60], "perf/total_num_tokens": 65536.0}
        record |= {f"rollout_corr/part_{number}": abs(noise[number]) for number in range(12)}
        if step % 50 == 0:
            record["val-core/made/up/reward/mean@1"] = 0.9 * progress + 0.01 * noise[61]
        records.append(record)
    return records


def samples(step: int, steps: int, random: np.random.Generator) -> list[dict[str, object]]:
    """The responses of one step, each with its tokens."""
    rows: list[dict[str, object]] = []
    for group in range(GROUPS):
        scores = (random.random(GROUP) < step / steps).astype(float)
        for score in scores:
            count = int(random.integers(TOKENS // 2, TOKENS * 3 // 2))
            texts = [f" {WORDS[index]}" for index in random.integers(len(WORDS), size=count)]
            log_probs = -random.exponential(0.4, size=count)
            rows.append(
                {
                    "data_source": "made/up",
                    "prompt": [
                        {"role": "user", "content": f"What is {random.integers(1000)} + {random.integers(1000)}?"}
                    ],
                    "response": "".join(texts),
                    "ground_truth": "1000",
                    "score": score,
                    "components": {"exact": score, "format": 1.0},
                    "error": None,
                    "prompt_length": 12,
                    "response_length": count,
                    "finish_reason": "stop",
                    "weight_version": step - 1,
                    "group": group,
                    "token_ids": list(range(count)),
                    "token_texts": texts,
                    "log_probs": log_probs.tolist(),
                    "ref_log_probs": (log_probs + 0.1 * random.normal(size=count)).tolist(),
                    "advantages": [float(score - scores.mean())] * count,
                }
            )
    return rows


def make_run(folder: Path, steps: int, every: int) -> None:
    """A run folder with sample rollouts every so many steps."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    lines = (json.dumps(record) + "\n" for record in metrics(steps, random))
    (folder / "metrics.jsonl").write_text("".join(lines))
    for step in range(every, steps + 1, every):
        write_rows(folder / "rollouts" / f"step_{step:06d}.parquet", samples(step, steps, random))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=5_000)
    parser.add_argument("--every", type=int, default=10, help="steps between sample rollouts")
    parser.add_argument("--times", type=int, default=5, help="the page is opened so often")
    parser.add_argument("--keep", type=Path, help="leave the run folder here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary) / "run"
        if not folder.exists():
            make_run(folder, arguments.steps, arguments.every)
        start = time.perf_counter()
        make_report([folder], None, arguments.samples)
        written = time.perf_counter() - start
        path = folder / "report.html"
        megabytes = path.stat().st_size / 1e6
        with open_browser() as page:
            page.size(1440, 900)
            opened = []
            for _ in range(arguments.times):
                page.open(path)
                opened.append(int(page.wait_for("document.documentElement.dataset.ready")) / 1000)
            start = time.perf_counter()
            page.evaluate("location.hash = 'samples'")
            page.wait_for("document.querySelector('.response') !== null")
            samples_seconds = time.perf_counter() - start
            listed = page.evaluate("document.querySelector('.browser').previousSibling.lastChild.textContent")
            problems = page.problems
    seconds = statistics.median(opened)
    print(f"written in {written:.1f} s, {megabytes:.1f} MB (required: below {MOST_MEGABYTES:.0f})")
    print(f"opened in {seconds:.2f} s, median of {len(opened)} (required: below {MOST_SECONDS:.0f}), then {listed}")
    print(f"the first sample in {samples_seconds:.2f} s more; problems on the console: {problems or 'none'}")
    figures = {"written_s": written, "megabytes": megabytes, "opened_s": seconds, "samples_s": samples_seconds}
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
