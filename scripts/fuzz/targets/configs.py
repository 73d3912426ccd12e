"""Configs and overrides, for ``corerl config show`` and ``corerl check``."""

import dataclasses
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from hypothesis import strategies as st

from corerl.contracts.config import ModelConfig, TrainConfig
from scripts.fuzz import mutations
from scripts.fuzz.command import corerl

BOMB = "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]" for n in range(1, 9)])

TEXTS = (
    *("", "[]", "null", "a", "1", "model", "model: &m {path: *m}", "&a [*a]", "a: &a\n  b: *a", "<<: [1]", "? {}\n: 1"),
    *("!!python/object/apply:os.system [true]", "model: !!python/name:os.system", "!!binary x", "model: !!set {a}"),
    *("model: {path: 2024-99-99}", "model: {path: 0o9}", "actor: {optim: {lr: .inf}}", "a: 1\na: 2", "--- a\n--- b"),
    *("model: {path: " + "[" * 3000, "{" * 3000, "a: " + "[" * 1500 + "]" * 1500, "a: " + "9" * 5000, BOMB),
    *("model: {path: ${model.path}}", "model: {path: ${oc.decode:1}}", "model: {path: ${oc.create:x}}", "\ufeffa: 1"),
)


class Configs:
    """See :class:`scripts.fuzz.targets.Target`."""

    name, seconds, processes = "configs", 20.0, False
    cases = st.one_of(
        st.tuples(st.just("tree"), mutations.edits),
        st.tuples(st.just("bytes"), mutations.cuts),
        st.tuples(st.just("text"), st.sampled_from(TEXTS) | st.text(max_size=40)),
        st.tuples(
            st.just("override"),
            st.tuples(st.integers(0, 1000), st.sampled_from((*mutations.HOSTILE, *TEXTS[:-8])) | st.text(max_size=20)),
        ),
    )

    def prepare(self, folder: Path) -> None:
        self.base = {
            **dataclasses.asdict(TrainConfig(ModelConfig(str(folder / "model")))),
            "data": {"train_files": [str(folder / "none.parquet")], "train_batch_size": 8, "max_prompt_length": 64},
            "algorithm": {"adv_estimator": {"name": "grpo"}},
            "rollout": {"n": 4, "name": "hf", "options": {}},
            "reward": {"scorer": {"name": "gsm8k", "method": "strict"}, "manager": {"name": "parallel", "patience": 1}},
        }
        self.keys = sorted(_dotted(self.base))

    def read(self, case: Any, folder: Path) -> None:
        kind, given = case
        file, overrides = folder / "config.yaml", list[str]()
        text = yaml.safe_dump(self.base)
        (folder / "trap.py").write_text("run = print")
        if kind == "tree":
            text = yaml.safe_dump(mutations.changed(self.base, given), allow_unicode=True)
        elif kind == "text":
            text = given
        elif kind == "override":
            overrides = [f"{self.keys[given[0] % len(self.keys)]}={given[1]}"]
        content = text.encode(errors="surrogatepass")
        file.write_bytes(mutations.damaged(content, given) if kind == "bytes" else content)
        if corerl("config", "show", str(file), *overrides) == 0:
            corerl("check", str(file), *overrides)


def _dotted(tree: Any, prefix: str = "") -> list[str]:
    if not isinstance(tree, dict):
        return [prefix]
    return [key for name, value in tree.items() for key in _dotted(value, f"{prefix}.{name}" if prefix else name)]
