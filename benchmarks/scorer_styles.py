r"""Scorers against real ground truths in many spellings, right and wrong: 12,500 is 12500.0 and not 12.5.

    python benchmarks/scorer_styles.py --data DATA --rows 200

The ground truths are the numbers of GSM8K's test split, of MATH's test split and of DAPO-Math-17k, and GSM8K's twice
more, with thousands commas and with ``.0`` at the end, as SVAMP writes them. Every answer is given in the form that the
scorer asks for
(``\boxed{…}``, ``#### …``, ``Answer: …``). ``library`` is math-verify by itself, as in ``scorer_agreement.py``.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet
from scorer_agreement import Library, scorers

from corerl_rewards.scorers.boxed import boxes
from corerl_rewards.scorers.exact_numbers import exact, is_number

NAMES = ("gsm8k", "gsm8k_flexible", "math", "math_verify", "math_dapo", "library")

RIGHT: dict[str, Callable[[Decimal], str]] = {
    "1234": lambda value: f"{value:f}",
    "1,234": lambda value: f"{value:,f}",
    "1234.0": lambda value: f"{value:f}" if value % 1 else f"{value:f}.0",
    r"1{,}234": lambda value: f"{value:,f}".replace(",", "{,}"),
    r"\$1,234": lambda value: rf"\${value:,f}",
    "€1,234": lambda value: f"€{value:,f}",
    r"1,234 \text{ songs}": lambda value: rf"{value:,f} \text{{ songs}}",
    "1,234 songs": lambda value: f"{value:,f} songs",
    "x = 1,234": lambda value: f"x = {value:,f}",
    r"\text{Total} = \$1,234": lambda value: rf"\text{{Total}} = \${value:,f}",
}
WRONG: dict[str, Callable[[Decimal], str]] = {
    "1235": lambda value: f"{value + 1:f}",
    "1.234": lambda value: f"{value / 1000:f}",
    "1235 = 1234": lambda value: f"{value + 1:f} = {value:f}",
    "1234 or 1235": lambda value: f"{value:f} or {value + 1:f}",
    "1235 or 1234": lambda value: f"{value + 1:f} or {value:f}",
    r"1234 \text{ (or 1235)}": lambda value: rf"{value:f} \text{{ (or {value + 1:f})}}",
    "1235 (or 1234)": lambda value: f"{value + 1:f} (or {value:f})",
    "1234, 1235": lambda value: f"{value:f}, {value + 1:f}",
    "1234_{7}": lambda value: f"{value:f}_{{7}}",
}
NO_NUMBER_FIRST = (r"\text{Total} = \$1,234", "x = 1,234")
"""spellings that a number after #### is not"""


def truths(data: Path, rows: int) -> dict[str, list[str]]:
    """Data set -> ground truths as written, ``rows`` of them, drawn with a seed."""
    gsm8k = [json.loads(line)["answer"].rpartition("#### ")[2] for line in _lines(data / "gsm8k" / "test.jsonl")]
    math = [str(boxes(json.loads(line)["solution"])[-1]) for line in _lines(data / "math" / "test.jsonl")]
    table = pyarrow.parquet.read_table(data / "dapo" / "dapo_math_17k.parquet", columns=["reward_model"])
    dapo = [str(row["ground_truth"]) for row in table["reward_model"].to_pylist()]
    sets = {
        "GSM8K": gsm8k,
        "MATH": math,
        "DAPO": dapo,
        "GSM8K as 1,234": [f"{exact(one):,f}" for one in gsm8k],
        "GSM8K as 1234.0": [f"{exact(one):f}.0" for one in gsm8k],
    }
    return {name: _drawn([one for one in found if is_number(one)], rows) for name, found in sets.items()}


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def _drawn(numbers: list[str], rows: int) -> list[str]:
    """Half of them numbers of thousands, as far as there are any."""
    draw = random.Random(0)
    large = [one for one in numbers if abs(exact(one)) >= 1000]
    small = [one for one in numbers if abs(exact(one)) < 1000]
    chosen = draw.sample(large, min(rows // 2, len(large)))
    return chosen + draw.sample(small, min(rows - len(chosen), len(small)))


def cases(truth: str) -> Iterator[tuple[str, str, int]]:
    """(spelling, answer, verdict) of one ground truth."""
    value = exact(truth)
    value = Decimal(int(value)) if value == int(value) else value
    for spelling, write in RIGHT.items():
        yield spelling, write(value), 1
    for spelling, write in WRONG.items():
        if spelling != "1.234" or abs(value) >= 1000:
            yield spelling, write(value), 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with gsm8k, math and dapo")
    parser.add_argument("--rows", type=int, default=200, help="ground truths of each data set")
    parser.add_argument("--only", nargs="*", choices=NAMES, default=list(NAMES))
    arguments = parser.parse_args()
    library = Library()
    columns = {name: scorer for name, scorer in scorers(library).items() if name in arguments.only}
    wrong, asked = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for data, golds in truths(arguments.data, arguments.rows).items():
        for truth in golds:
            for spelling, answer, verdict in cases(truth):
                for name, (form, score) in columns.items():
                    if name == "gsm8k" and spelling in NO_NUMBER_FIRST:
                        continue
                    failed = score(form.format(answer), truth) != verdict
                    for row in (spelling, f"{data}, {'right' if verdict else 'wrong'} answers"):
                        asked[row, name] += 1
                        wrong[row, name] += failed
    library.close()
    print("| | " + " | ".join(f"`{name}`" for name in columns) + " |\n|---|" + "---|" * len(columns))
    for row in dict.fromkeys(row for row, _ in asked):
        cells = [
            f"{100 * (1 - wrong[row, name] / asked[row, name]):.2f}%" if asked[row, name] else "" for name in columns
        ]
        print(f"| `{row}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
