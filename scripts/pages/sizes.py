"""Write the memory that ``corerl check`` estimates into ``examples/recipes/sizes/`` and the table of docs/recipes.md.

python -m scripts.pages.sizes
"""

import contextlib
import io
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from corerl.cli.main import run
from corerl_testing.published_shapes import published_config
from scripts.pages.markdown import table

ROOT = Path(__file__).parents[2]
CONFIGS = tuple(sorted((ROOT / "examples" / "recipes" / "sizes").glob("*.yaml")))
PAGE = ROOT / "docs" / "recipes.md"
MARKS = "<!-- sizes: made by scripts/pages/sizes.py -->\n", "<!-- end of sizes -->\n"
GIB_OF_GPU = 79.0
"""that a GPU of 80 GiB gives"""

ROWS = 512
"""a batch of the largest config"""

SHAPES = {"8b": "qwen3-8b", "30b-a3b": "qwen3-30b-a3b"}
"""size in the name of a config -> shape; others are of Qwen2.5"""

MEMORY = re.compile(r"(# Memory .*:\n)(?:#     .*\n)*")


def checked(config: Path) -> dict[str, Any]:
    """The answer of ``corerl check`` for GPUs of 80 GiB: the model has the shape alone, the data ``ROWS`` rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    size, gpus = named(config)
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        shutil.copytree(ROOT / "examples" / "gsm8k" / "tiny-model", folder, dirs_exist_ok=True)
        published_config(SHAPES.get(size, f"qwen2.5-{size}")).save_pretrained(folder)
        row = {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": "1 + 1 = ?"}],
            "reward_model": {"style": "rule", "ground_truth": "2"},
        }
        pq.write_table(pa.Table.from_pylist([row] * ROWS), folder / "rows.parquet")
        files = f"[{folder / 'rows.parquet'}]"
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            machine = ("--gpus", str(gpus), "--gpu-memory-gb", str(GIB_OF_GPU))
            given = (f"model.path={folder}", f"data.train_files={files}", f"data.val_files={files}")
            run(["check", str(config), "--json", *machine, *given])
    answer: dict[str, Any] = json.loads(output.getvalue())
    return answer


def named(config: Path) -> tuple[str, int]:
    """Size and number of GPUs in the name of a config."""
    found = re.fullmatch(r"(.+?)(?:-lora)?-(\d+)gpu", config.stem)
    assert found is not None
    return found[1], int(found[2])


def render_config(text: str, answer: Mapping[str, Any]) -> str:
    """The text with the estimated memory in its comment."""
    lines = ""
    for phase in answer["memory"]:
        parts = ", ".join(f"{name} {_gib(part)}" for name, part in phase["parts"].items())
        lines += f"#     {phase['name']}, {gib(phase)}: {parts}\n"
    return MEMORY.sub(lambda found: found[1] + lines, text)


def render_page(page: str, answers: Mapping[Path, Mapping[str, Any]]) -> str:
    """The page with the table of all configs."""
    columns = ("config", "model", "GPUs of 80 GiB", "prompts × responses", "GiB of an update", "of generation")
    rows = []
    for config, answer in answers.items():
        values = yaml.safe_load(config.read_text(encoding="utf-8"))
        adapters = f", LoRA {rank}" if (rank := values["model"].get("lora_rank")) else ""
        rows.append(
            (
                f"[{config.stem}](../examples/recipes/sizes/{config.name})",
                values["model"]["path"].partition("/")[2] + adapters,
                str(named(config)[1]),
                f"{values['data']['train_batch_size']} × {values['rollout']['n']}",
                *map(gib, answer["memory"]),
            )
        )
    rows.sort(key=lambda row: [int(each) if each.isdigit() else each for each in re.split(r"(\d+)", row[1] + row[2])])
    before, _, rest = page.partition(MARKS[0])
    return f"{before}{MARKS[0]}\n{table(columns, rows)}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


def gib(phase: Mapping[str, Any]) -> str:
    """GiB of a phase."""
    return _gib(sum(phase["parts"].values()))


def _gib(number: float) -> str:
    return f"{number / 2**30:.1f}"


if __name__ == "__main__":
    answers = {config: checked(config) for config in CONFIGS}
    for config, answer in answers.items():
        config.write_text(render_config(config.read_text(encoding="utf-8"), answer), encoding="utf-8")
    PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8"), answers), encoding="utf-8")
