"""Folders of runs that somebody hands on, for ``corerl runs`` and ``corerl report``."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from scripts.fuzz import mutations
from scripts.fuzz.command import corerl

STATUS = {
    "state": "running",
    "total_steps": 2,
    "host": "elsewhere",
    "pid": 1,
    "process": "boot/1/1",
    "started": 1.7e9,
    "ended": None,
    "error": "Error: no",
}
RECORDS = [
    {"step": step, "critic/score/mean": 0.5, "val-core/a/mean@1": 0.1, "timing_s/step": 1.0} for step in (0, 1, 2)
]
SAMPLE = {
    "prompt": [{"role": "user", "content": "1 + 1?"}],
    "response": "2",
    "score": 1.0,
    "response_length": 1,
    "prompt_length": 4,
    "group": 0,
    "data_source": "s",
    "components": {"a": 1.0},
    "ground_truth": "2",
    "token_ids": [1],
    "token_texts": ["2"],
    "log_probs": [-0.5],
    "advantages": [0.5],
    "finish_reason": "stop",
    "weight_version": 1,
}
FILES: dict[str, Any] = {
    "status.json": STATUS,
    "metrics.jsonl": RECORDS,
    "plugins.json": [{"part": "scorer", "name": "a", "distribution": "b", "version": "1"}],
    "config.yaml": {"model": {"path": "m"}, "rollout": {"n": 8}},
    "rollouts/step_1.parquet": SAMPLE,
}


class RunFolders:
    """See :class:`scripts.fuzz.targets.Target`."""

    name, seconds, processes = "run-folders", 20.0, False
    cases = st.tuples(
        st.sampled_from(sorted(FILES)),
        st.one_of(
            st.tuples(st.just("tree"), mutations.edits),
            st.tuples(st.just("bytes"), mutations.cuts),
            st.tuples(st.just("text"), st.sampled_from(sorted(mutations.DEEP))),
        ),
    )

    def prepare(self, folder: Path) -> None:
        pass

    def read(self, case: Any, folder: Path) -> None:
        chosen, (kind, given) = case
        run = folder / "runs" / "default" / "20260101-000000"
        (run / "rollouts").mkdir(parents=True)
        for name, tree in FILES.items():
            if name == chosen and kind == "tree":
                tree = mutations.changed(tree, given)
            if not _write(run / name, tree):
                return
        if kind != "tree":
            content = (run / chosen).read_bytes()
            content = mutations.damaged(content, given) if kind == "bytes" else mutations.DEEP[given].encode()
            (run / chosen).write_bytes(content)
        corerl("runs", str(folder / "runs"))
        corerl("report", str(run))


def _write(path: Path, tree: Any) -> bool:
    if path.suffix != ".parquet":
        lines = tree if path.suffix == ".jsonl" else [tree]
        path.write_text("".join(json.dumps(each) + "\n" for each in lines))
        return True
    try:
        pq.write_table(pa.Table.from_pylist([tree]), path)
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError, AttributeError, ValueError):
        return False
    return True
