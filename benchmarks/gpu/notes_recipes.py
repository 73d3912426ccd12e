"""Two steps of five published commands of verl, converted, with random weights in the shapes of their models.

    python benchmarks/gpu/material.py --out /tmp/material --gsm8k DATA/gsm8k
    python benchmarks/gpu/notes_recipes.py --material /tmp/material --only qwen3_0.6b_xr1_grpo
    python benchmarks/gpu/notes_recipes.py --device cpu

The commands are those of plugins/corerl_verl/tests/notes. Each is converted (`corerl config from-verl`), checked
(`corerl check`) and trained for two steps. Values that this machine or random weights exclude are exchanged; the script
prints each exchange with its reason. On GPUs models have full size, but those of 7B and 8B are cut to 8 layers without
``--whole``. vLLM generates (``--engine sglang --python PYTHON``: the commands' own engine). The two commands for 28,672
tokens get 8 prompts a step and responses of 1024. ``--no-checkpoint`` ends a run after its second step, since a
checkpoint of an 8B model takes 115 GB. On the CPU the model is tiny, strategy ``torch`` trains and ``hf`` generates.

About 60 to 90 s a recipe on a GPU, half of them vLLM's start; 20 s on the CPU. All visible GPUs are used; Megatron's
tensor parallel and Ulysses' sequence parallel have as many ranks at most. Exit code 1: a recipe failed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics
from corerl_verl.sources import converted, read

ROOT = Path(__file__).resolve().parents[2]
NOTES = ROOT / "plugins" / "corerl_verl" / "tests" / "notes"
STEPS = 2
NO_HUB = "no download: random weights"
SOLVES_NOTHING = "a random model solves nothing: a reward that varies, so that advantages and gradients do"


class Recipe(NamedTuple):
    """A command of the notes.

    Attributes:
        shape: of ``corerl_testing.published_shapes``.
        data_source: of the notes' data; it selects the scorer.
        layers: of the model on a GPU; None: all.
        prompts: of a step on a GPU; None: the command's.
        response: largest number of response tokens on a GPU; None: the command's.
    """

    shape: str
    data_source: str
    layers: int | None = None
    prompts: int | None = None
    response: int | None = None


RECIPES: Mapping[str, Recipe] = {
    "qwen2.5_0.5b_gsm8k_ppo": Recipe("qwen2.5-0.5b", "openai/gsm8k"),
    "qwen3_0.6b_xr1_grpo": Recipe("qwen3-0.6b", "lighteval/MATH"),
    "qwen3_8b_xr1_grpo": Recipe("qwen3-8b", "lighteval/MATH", layers=8),
    "r1_distill_1.5b_boba_grpo": Recipe("qwen2.5-1.5b", "lighteval/MATH", prompts=8, response=1024),
    "r1_distill_7b_boba_grpo": Recipe("qwen2.5-7b", "lighteval/MATH", layers=8, prompts=8, response=1024),
}


class Place(NamedTuple):
    """Where a recipe runs.

    Attributes:
        model: a model folder.
        train: a parquet file of the notes' columns; ``test`` likewise.
        output: the folder of the run.
        gpus: 0: the CPU, with sizes for a tiny model.
        goes_on: the run has one more step, during which it is ended.
    """

    model: Path
    train: Path
    test: Path
    output: Path
    gpus: int = 0
    engine: str = "vllm"
    python: str | None = None
    goes_on: bool = False


class Exchange(NamedTuple):
    """A key of the converted config, its new value, and the reason."""

    key: str
    value: Any
    reason: str


def varying(response: str, ground_truth: object, data_source: str, extra_info: object) -> float:
    """The reward of these runs: 1 for responses of an odd number of characters."""
    return float(len(response) % 2)


def config_of(name: str) -> dict[str, Any]:
    """The converted command, before any exchange."""
    return converted(read([str(NOTES / f"{name}.sh")], {"HOME": str(Path.home())})).values


def exchanges(recipe: Recipe, config: Mapping[str, Any], place: Place) -> Iterator[Exchange]:
    """What a machine without the notes' models, data and GPUs cannot do as the command says."""
    yield Exchange("model.path", str(place.model), NO_HUB)
    if "critic" in config:
        yield Exchange("critic.path", str(place.model), NO_HUB)
    yield Exchange("model.load_format", "dummy", NO_HUB)
    yield Exchange("data.train_files", [str(place.train)], "rows of the notes' columns, with other questions")
    yield Exchange("data.val_files", [str(place.test)], "rows of the notes' columns, with other questions")
    yield Exchange("reward.scorer", f"{Path(__file__).resolve()}:varying", SOLVES_NOTHING)
    yield Exchange("tracking.loggers", ["console"], "trackers of the command ask for accounts")
    yield Exchange("trainer.total_training_steps", STEPS + place.goes_on, "two steps")
    yield Exchange("trainer.output_dir", str(place.output), "a folder of this run")
    yield from _cpu(config) if not place.gpus else _gpu(recipe, config, place)


def _cpu(config: Mapping[str, Any]) -> Iterator[Exchange]:
    strategy, data = _part(config["actor"]["strategy"])["name"], config["data"]
    yield Exchange("actor.device", "cpu", "no GPU")
    yield Exchange("actor.strategy", "torch", f"{strategy} shares a model over GPUs; the same loss and update")
    if "critic" in config:
        yield Exchange("critic.strategy", "torch", f"{strategy} shares a model over GPUs; the same loss and update")
    if "strategy" in config.get("ref", {}):
        yield Exchange("ref.strategy", "torch", f"{strategy} shares a model over GPUs; the same log-probs")
    yield Exchange("rollout.name", "hf", f"{config['rollout']['name']} needs a GPU")
    yield Exchange("rollout.options", {}, "options of that engine")
    yield Exchange("rollout.tensor_model_parallel_size", 1, "no GPU")
    yield Exchange("runtime", {"name": "local"}, "one process")
    yield Exchange("data.max_prompt_length", 160, "a tiny model")
    yield Exchange("data.max_response_length", 6, "a tiny model")
    if data["train_batch_size"] > 8:
        yield Exchange("data.train_batch_size", 8, "two cores")
        yield Exchange("actor.ppo_mini_batch_size", 4, "two cores")
    if "val_batch_size" in data:
        yield Exchange("data.val_batch_size", 8, "two cores")


def _gpu(recipe: Recipe, config: Mapping[str, Any], place: Place) -> Iterator[Exchange]:
    rollout = config["rollout"]
    if rollout["name"] != place.engine:
        yield Exchange("rollout.name", place.engine, f"{rollout['name']} has an environment of its own: --engine")
    options = dict(rollout.get("options", {})) | {"load_format": "dummy"}
    prompts = recipe.prompts or config["data"]["train_batch_size"]
    if place.engine == "vllm":
        options["enforce_eager"] = True  # half of the start
    else:
        options["engine_args"] = {"cuda_graph_max_bs_decode": min(512, prompts * rollout["n"])}
    if place.python:
        options["python"] = place.python
    yield Exchange("rollout.options", options, "random weights, a quick start, the engine's environment")
    yield Exchange("rollout.ignore_eos", True, "a random model ends a response by chance")
    split = min(place.gpus, rollout.get("tensor_model_parallel_size", 1))
    yield Exchange("rollout.tensor_model_parallel_size", split, f"{place.gpus} GPUs")
    yield Exchange("runtime", {"name": "ray", "n_gpus_per_node": place.gpus}, f"one node of {place.gpus} GPUs")
    for role in ("actor", "ref"):
        if "strategy" in config.get(role, {}):
            yield Exchange(f"{role}.strategy", _on(place.gpus, config[role]["strategy"]), f"{place.gpus} GPUs")
    if recipe.prompts:
        yield Exchange("data.train_batch_size", prompts, "seconds of a GPU")
        yield Exchange("actor.ppo_mini_batch_size", prompts // 4, "seconds of a GPU")
    if recipe.response:
        yield Exchange("data.max_response_length", recipe.response, "seconds of a GPU")
    yield Exchange("data.val_max_samples", 16, "seconds of a GPU")


def _on(gpus: int, part: Any) -> dict[str, Any]:
    """A strategy that divides a model over at most so many GPUs."""
    strategy = _part(part)
    for key in ("tensor_model_parallel_size", "ulysses_sequence_parallel_size"):
        if strategy.get(key, 1) > gpus:
            strategy[key] = gpus
    if strategy.get("tensor_model_parallel_size") == 1:
        strategy.pop("sequence_parallel", None)
    return strategy


def _part(part: Any) -> dict[str, Any]:
    return dict(part) if isinstance(part, Mapping) else {"name": part}


def apply(config: dict[str, Any], changes: list[Exchange]) -> dict[str, Any]:
    """The config with the exchanges."""
    for change in changes:
        *sections, last = change.key.split(".")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = change.value
    return config


def write_rows(file: Path, source: str, rows: list[dict[str, Any]]) -> Path:
    """Write rows with the notes' five columns: their data source, and its request for the form of the answer."""
    form = "put the final answer within \\boxed{}." if source == "lighteval/MATH" else 'output it after "####".'
    made = [
        {
            "data_source": source,
            "prompt": [
                {"role": "user", "content": f"{row['prompt'][-1]['content']} Let's think step by step and {form}"}
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(row["reward_model"]["ground_truth"])},
            "extra_info": {"split": file.stem, "index": index},
        }
        for index, row in enumerate(rows)
    ]
    pq.write_table(pa.Table.from_pylist(made), file)
    return file


def material(recipe: Recipe, folder: Path, given: Path | None, layers: int | None = None) -> tuple[Path, Path, Path]:
    """Model folder, training rows and test rows: of ``given``, cut in layers, or tiny ones."""
    model, data = folder / "model", folder / "data"
    if given is None:
        run(["prepare", "arithmetic", "--out", str(data), "--train-size", "64", "--test-size", "8"])
        shape = ["--vocab-size", "300", "--hidden-size", "16", "--layers", "1", "--heads", "2", "--kv-heads", "1"]
        corpus = str(data / "train.parquet")
        run(["tiny-model", "--out", str(model), "--corpus", corpus, "--no-weights", *shape])
    else:
        data = given / "gsm8k"
        model.mkdir()
        for file in (given / recipe.shape).iterdir():
            (model / file.name).write_bytes(file.read_bytes())
        if layers:
            sizes = json.loads((model / "config.json").read_text()) | {"num_hidden_layers": layers}
            sizes.pop("layer_types", None)  # one for each layer
            (model / "config.json").write_text(json.dumps(sizes))
    rows = {name: pq.read_table(data / f"{name}.parquet").to_pylist() for name in ("train", "test")}
    written = {name: write_rows(folder / f"{name}.parquet", recipe.data_source, rows[name]) for name in rows}
    return model, written["train"], written["test"]


def measure(name: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Convert, check and train; returns a row of the table."""
    recipe = RECIPES[name]
    layers = None if arguments.whole else recipe.layers
    model, train, test = material(recipe, folder, None if arguments.device == "cpu" else arguments.material, layers)
    gpus = 0 if arguments.device == "cpu" else _gpus()
    place = Place(
        model, train, test, folder / "runs", gpus, arguments.engine, arguments.python, arguments.no_checkpoint
    )
    config = config_of(name)
    changes = list(exchanges(recipe, config, place))
    if layers and gpus:
        print(f"{name}: model cut to {layers} layers: time and memory of one GPU")
    for change in changes:
        print(f"{name}: {change.key}={change.value}: {change.reason}")
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(apply(config, changes)))
    for command in ("check", "train"):
        ends = arguments.no_checkpoint and command == "train"
        if _apart(command, file, place.output if ends else None) if gpus else run([command, str(file)]):
            return {"recipe": name, "failed": command}
    last = steps(place.output)[-1]
    parts = ("gen", "old_log_prob", "ref", "values", "update_critic", "update_actor", "save", "update_weights")
    return {
        "recipe": name,
        "failed": "",
        "tokens": last["perf/total_num_tokens"],
        "step s": last["perf/time_per_step"],
        **{f"{part} s": last.get(f"timing_s/{part}", 0.0) for part in parts},
        "tokens/s": last["perf/throughput"],
        "MFU": last.get("perf/mfu/actor", 0.0),
        "GiB": last.get("perf/max_memory_allocated_gb", 0.0),
        "grad norm": last["actor/grad_norm"],
        "checkpoint GiB": checkpoint_bytes(place.output) / 2**30,
    }


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def checkpoint_bytes(output: Path) -> int:
    """Of the complete checkpoints of the run in this folder."""
    files = (file for manifest in output.glob("*/*/checkpoints/*/manifest.json") for file in manifest.parent.rglob("*"))
    return sum(file.stat().st_size for file in files if file.is_file())


def steps(output: Path) -> list[dict[str, Any]]:
    """Records of the steps so far of the run in this folder."""
    logs = output.glob("*/*/metrics.jsonl")
    return [record for log in logs for record in read_metrics(log) if "critic/score/mean" in record]


def _apart(command: str, config: Path, output: Path | None) -> int:
    """A command in a process of its own, which frees a GPU's memory at its end; with ``output`` it ends after STEPS."""
    process = subprocess.Popen([sys.executable, "-m", "corerl", command, str(config)], stdout=subprocess.DEVNULL)
    while output and process.poll() is None and len(steps(output)) < STEPS:
        time.sleep(0.5)
    if not output or process.poll() is not None:
        return process.wait()
    for _ in range(2):  # the second signal ends the run without a checkpoint
        process.terminate()
        time.sleep(1)
    process.wait(timeout=120)
    return 0


def main() -> int:
    """Every recipe in turn; the table comes last."""
    arguments = _arguments()
    rows = []
    for name in arguments.only or RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, Path(folder), arguments))
        print(json.dumps(rows[-1]), flush=True)
    columns = max(rows, key=len)
    table = Table(*columns, title=f"second step of the notes' commands, {arguments.device}")
    for row in rows:
        cells = (row.get(column, "") for column in columns)
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))
    Console(width=220).print(table)
    return int(any(row["failed"] for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--material", type=Path, default=Path("/tmp/material"), help="what material.py wrote")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--whole", action="store_true", help="7B and 8B: on two GPUs of 140 GiB or four of 80")
    parser.add_argument("--no-checkpoint", action="store_true", help="end each run after its second step, on GPUs")
    parser.add_argument("--engine", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument("--python", help="interpreter of the engine's environment; default: this one")
    parser.add_argument("--only", nargs="*", choices=list(RECIPES), help="recipes; default: all")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
