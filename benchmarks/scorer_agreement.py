"""Scorers against verdicts that are known: the solutions of GSM8K and MATH, and a table of triples written by hand.

    python benchmarks/scorer_agreement.py --data DATA --math-verify-tests math_verify-0.9.0/tests

The table, plugins/corerl_rewards/tests/verdicts.jsonl, holds one JSON object a line: ``gold``, ``verdict`` (1 or 0,
what a careful teacher says: is it the same value?) and either ``answer``, which each scorer gets in the form that it
asks for, or ``response``, which is given as it is to the scorers named. ``library`` is math-verify called by itself,
on the boxes of ``math``. math-verify's own cases come with its source distribution, not with what pip installs
(``pip download --no-deps --no-binary :all: math-verify``).
"""

import argparse
import ast
import json
import multiprocessing
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from corerl_rewards.options import FuzzyMatchOptions, Gsm8kOptions, MathOptions, MathVerifyOptions
from corerl_rewards.scorers.boxed import boxes
from corerl_rewards.scorers.exact_match import exact_match
from corerl_rewards.scorers.exact_numbers import is_number
from corerl_rewards.scorers.fuzzy_match import fuzzy_match
from corerl_rewards.scorers.gsm8k import gsm8k
from corerl_rewards.scorers.math import math
from corerl_rewards.scorers.math_dapo import math_dapo
from corerl_rewards.scorers.math_verify import math_verify
from corerl_rewards.scorers.multiple_choice import multiple_choice

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "plugins" / "corerl_rewards" / "tests" / "verdicts.jsonl"
SECONDS = 8.0
"""for one comparison"""

Score = Callable[[str, Any], float]
NUMERIC = ("integer", "zero", "thousands", "sign", "money", "unit", "percent")
"""kinds of answers that a number after #### can be"""


def scorers(library: Score) -> dict[str, tuple[str, Score]]:
    """Name -> (the form in which it wants an answer, '' for none; the score of a response against a ground truth)."""
    flexible, timed = Gsm8kOptions(method="flexible"), MathOptions(timeout=SECONDS)
    verified, near = MathVerifyOptions(timeout=SECONDS), FuzzyMatchOptions(threshold=0.85)
    return {
        "gsm8k": ("#### {}", lambda text, gold: _score(gsm8k(text, gold, "", {}))),
        "gsm8k_flexible": ("The answer is {}", lambda text, gold: _score(gsm8k(text, gold, "", {}, flexible))),
        "math": (r"\boxed{{{}}}", lambda text, gold: _score(math(text, gold, "", {}, timed))),
        "math_verify": ("The answer is ${}$.", lambda text, gold: _score(math_verify(text, gold, "", {}, verified))),
        "math_dapo": ("Answer: {}", lambda text, gold: _score(math_dapo(text, gold, "", {}))),
        "library": (r"\boxed{{{}}}", lambda text, gold: library(text, f"${gold}$")),
        "multiple_choice": ("", lambda text, gold: _score(multiple_choice(text, gold, "", {}))),
        "exact_match": ("", lambda text, gold: _score(exact_match(text, gold, "", {}))),
        "fuzzy_match": ("", lambda text, gold: float(_score(fuzzy_match(text, gold, "", {}, near)) > 0)),
    }


def _score(value: Any) -> float:
    return float(value["score"])


class Library:
    """math-verify itself, in a process that is ended when it hangs."""

    def __init__(self) -> None:
        self._fresh = True
        self._start()

    def __call__(self, response: str, gold: Any) -> float:
        self._pipe.send((response, gold))
        if not self._pipe.poll(SECONDS + 30 * self._fresh):
            self.close()
            self._start()
            raise TimeoutError(f"{SECONDS} s")
        self._fresh = False
        return float(self._pipe.recv())

    def _start(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_serve_library, args=(theirs,), daemon=True)
        self._process.start()
        self._fresh = True

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _serve_library(pipe: Connection) -> None:
    import logging

    from math_verify import ExprExtractionConfig, LatexExtractionConfig, verify
    from math_verify import parse as parse_with

    logging.disable()
    targets = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]

    def parse(text: str) -> Any:
        return parse_with(text, targets, parsing_timeout=None)

    while True:
        response, gold = pipe.recv()
        pipe.send(verify(parse(gold), parse(response), timeout_seconds=None))


def cases(name: str, form: str) -> Iterator[tuple[dict[str, Any], str]]:
    """(row of the table, response) of what a scorer is asked."""
    for line in TABLE.read_text().splitlines():
        row = json.loads(line)
        if "response" in row:
            asked = name if name != "library" else "math"
            if asked in row["scorers"]:
                yield row, row["response"]
        elif form and (not name.startswith("gsm8k") or (row["kind"] in NUMERIC and is_number(row["gold"]))):
            yield row, form.format(row["answer"])


def table(show_misses: bool) -> dict[str, Any]:
    """Ask every scorer for everything in the table; print right answers by kind, and what was missed."""
    library = Library()
    right: defaultdict[str, Counter[str]] = defaultdict(Counter)
    asked: defaultdict[str, Counter[str]] = defaultdict(Counter)
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    misses: list[str] = []
    columns = scorers(library)
    for name, (form, score) in columns.items():
        for row, response in cases(name, form):
            try:
                given = "right" if score(response, row["gold"]) == row["verdict"] else "wrong"
            except Exception as error:
                given = f"no score: {type(error).__name__}"
            if given == "wrong":
                given = "false accept" if row["verdict"] == 0 else "false reject"
            asked[row["kind"]][name] += 1
            right[row["kind"]][name] += given == "right"
            outcomes[name][given.partition(":")[0]] += 1
            if given != "right":
                misses.append(f"{name:16} {given:24} {row['kind']:18} gold {row['gold']!s:32} {response!r}")
    library.close()
    print(f"{'kind':20}" + "".join(f"{name:>16}" for name in columns))
    for kind in asked:
        cells = [f"{right[kind][name]}/{asked[kind][name]}" if asked[kind][name] else "" for name in columns]
        print(f"{kind:20}" + "".join(f"{cell:>16}" for cell in cells))
    for outcome in ("right", "false accept", "false reject", "no score"):
        print(f"{outcome:20}" + "".join(f"{outcomes[name][outcome]:>16}" for name in columns))
    if show_misses:
        print("\n" + "\n".join(misses))
    return {name: dict(outcomes[name]) for name in columns}


def cases_of_math_verify(folder: Path, show_misses: bool) -> dict[str, Any]:
    """The (gold, prediction, verdict) triples of math-verify's own tests, for the library and for ``math_verify``."""
    triples = [triple for file in sorted(folder.glob("test_*.py")) for triple in _triples(ast.parse(file.read_text()))]
    library = Library()
    right: Counter[str] = Counter()
    for name, score in (("library", library), ("math_verify", scorers(library)["math_verify"][1])):
        for gold, response, verdict in triples:
            try:
                given: float | str = score(response, gold)
            except Exception as error:
                given = type(error).__name__
            right[name] += given == verdict
            if show_misses and given != verdict:
                print(f"{name:12} {given!s:12} for {verdict}: gold {gold[-80:]!r}, {response[-120:]!r}")
    library.close()
    return {name: f"{count} of {len(triples)}" for name, count in right.items()}


def _triples(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and len(node.elts) == 3:
            values = [each.value if isinstance(each, ast.Constant) else None for each in node.elts]
            if [type(value) for value in values] in ([str, str, int], [str, str, bool]):
                yield values[0], values[1], int(values[2])  # type: ignore[misc,arg-type]


def own_solutions(data: Path) -> dict[str, Any]:
    """GSM8K's and MATH's solutions as responses; prints every one that does not score 1."""
    result = {}
    for method in ("gsm8k", "gsm8k_flexible"):
        score = scorers(lambda *_: 0.0)[method][1]
        rows = [json.loads(line)["answer"] for name in ("train", "test") for line in _lines(data / "gsm8k", name)]
        result[f"{method} on GSM8K"] = _own(score, [(row, row.rpartition("#### ")[2]) for row in rows])
    rows = [json.loads(line)["solution"] for line in _lines(data / "math", "test")]
    for name in ("math", "math_verify"):
        score = scorers(lambda *_: 0.0)[name][1]
        result[f"{name} on MATH"] = _own(score, [(row, boxes(row)[-1]) for row in rows])
    several = [(number, boxes(row)) for number, row in enumerate(rows) if len(set(boxes(row))) > 1]
    print(f"MATH rows whose solution has several different boxes, of which the last is taken: {len(several)}")
    for number, found in several:
        print(f"  row {number}: {found}")
    return result


def _lines(folder: Path, name: str) -> list[str]:
    return (folder / f"{name}.jsonl").read_text().splitlines()


def _own(score: Score, pairs: list[tuple[str, Any]]) -> str:
    failed = []
    for number, (response, gold) in enumerate(pairs):
        try:
            reason = "" if score(response, gold) == 1.0 else "scored 0"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if reason:
            failed.append(f"  row {number}: ground truth {gold!r}: {reason}")
    print("\n".join(failed), end="\n" if failed else "")
    return f"{len(pairs) - len(failed)} of {len(pairs)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with gsm8k/{train,test}.jsonl and math/test.jsonl")
    parser.add_argument("--math-verify-tests", type=Path, help="folder with math-verify's own test_*.py")
    parser.add_argument("--misses", action="store_true", help="list every case that a scorer gets wrong")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"table": table(arguments.misses)}
    if arguments.math_verify_tests:
        figures["math-verify's own cases"] = cases_of_math_verify(arguments.math_verify_tests, arguments.misses)
    if arguments.data:
        figures |= own_solutions(arguments.data)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
