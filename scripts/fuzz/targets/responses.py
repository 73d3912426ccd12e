"""Responses and ground truths, for every scorer of corerl-rewards and corerl-sandbox."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from corerl.plugins import load_plugins
from corerl.registry.scorers import load_scorer
from scripts.fuzz import mutations

PARTS = (
    *(r"\boxed{", "}", r"\frac", "{", "$", r"\(", r"\left(", "####", "Answer:", "<think>", "</think>", "<answer>"),
    *("</answer>", "1", "42", "-", "+", "*", "/", "(", ")", "^", "**", "9" * 400, "9**9**9", "1e999", ",", ".", "%"),
    *("\n", "\\", "```python\n", "```", "print(", "input()", "def f(x):\n return x\n", "A", "(B)", "**C**", "e", "π"),
    *(r"\sqrt{", r"\infty", r"\pm", r"\begin{pmatrix}", "&", "1/3", "0.333", "½", "٣", "\x00", "\ud800", "𝟙", " " * 99),
    *("__import__('os').system('true')", "factorial(99999)", "2" * 5000, "x=", "[1,2]", "\u202e", "no", "nan", "inf"),
)
TRUTHS = ("42", "1/3", r"\frac{1}{3}", "A", "x^2", "(1,2)", "[1,2]", "", "nan", "9" * 400, r"\infty", "Paris")
CODE = ('{"inputs": ["1\\n"], "outputs": ["1\\n"]}', '["assert f(1) == 1"]', "{}", '{"inputs": 1}')
NUMBERS = {"target": 42, "numbers": [40, 2]}
SLOW = ("code",)


class Responses:
    """See :class:`scripts.fuzz.targets.Target`."""

    name, seconds, processes = "responses", 60.0, True
    cases = st.tuples(
        st.integers(0, 200),
        st.one_of(
            st.lists(st.sampled_from(PARTS), max_size=8).map("".join),
            st.tuples(st.sampled_from(PARTS), st.sampled_from((10, 1000, 30_000))).map(lambda each: each[0] * each[1]),
            st.text(max_size=30),
        ),
        st.sampled_from((*TRUTHS, *CODE)) | mutations.values | st.just(NUMBERS),
    )

    def prepare(self, folder: Path) -> None:
        entries = load_plugins().registries.scorers
        names = [entry.name for entry in entries if entry.owner.distribution in ("corerl-rewards", "corerl-sandbox")]
        names.remove("combined")  # of others
        selected = {name: entries.select(name, "reward.scorer") for name in names}
        self.scorers = {name: load_scorer(each, 10.0) for name, each in selected.items()}

    def read(self, case: Any, folder: Path) -> None:
        number, response, truth = case
        quick = [name for name in self.scorers if name not in SLOW]
        names = [quick[number % len(quick)]] if number % 20 else [*SLOW]
        for name in names:
            try:
                result = self.scorers[name](response, truth, "source", {})
            except ValueError:  # of a ground truth that is none: an error of the sample
                continue
            values: dict[str, Any] = dict(result) if isinstance(result, Mapping) else {"score": result}
            for key, value in values.items():
                if key != "extracted" and not math.isfinite(value):
                    raise ValueError(f"scorer {name}: {key} is {value}")
