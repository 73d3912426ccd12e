"""Convert a checkpoint to a model folder, tensor by tensor: without a device, with one shard in memory."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from corerl.checkpoint import manifest
from corerl.checkpoint.resume import Checkpoint, newest_whole
from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl.contracts.training_strategies import TrainingStrategyFactory
from corerl.errors import ConfigError, ModelError, UntrustedError
from corerl.files import atomic_path, read_text, reading, require_writable
from corerl.models import DTYPES
from corerl.plugins import load_plugins
from corerl.registry import Entry
from corerl.registry.modules import trusted_files
from corerl_tools.resumed import saved_config
from corerl_torch.weights import as_in_files


def export(checkpoint: Path, out: Path, *, dtype: str | None = None, shard_bytes: int = 5 * 10**9) -> Path:
    """Write weights, config, generation config and tokenizer of the policy, atomically.

    Args:
        checkpoint: a checkpoint, or the folder of a run for its newest checkpoint.
        out: a folder that does not exist yet.
        dtype: of the weights, ``bf16``, ``fp16`` or ``fp32``; None: the trainer's compute dtype.

    Returns:
        The checkpoint that was exported.

    Raises:
        ConfigError: there is no such checkpoint, it is damaged, ``out`` exists, or ``out`` cannot be written.
        ModelError: the training strategy cannot read a checkpoint without its ranks; weights are missing.
        UntrustedError: strategy or model are code named in the checkpoint, which must not run.
    """
    found = _find(checkpoint)
    if out.exists():
        raise ConfigError("OUT", f"{out} already exists")
    require_writable(out.parent, "OUT")
    from transformers import AutoConfig

    config = typed.build(TrainConfig, _saved(found))
    trust = trusted_files.get() is None
    config.model.trust_remote_code = config.model.trust_remote_code and trust
    strategy = _strategy(found.path, config)
    with reading(found.path):
        state = json.loads(read_text(found.path / "state.json"))
        chosen = DTYPES[dtype or state["dtype"]]
        weights = _weights(strategy, found.path, config)
        with atomic_path(out, folder=True) as folder:
            if weights is None:
                _copy(found.path, "huggingface", folder)
            else:
                _copy(found.path, "model", folder)
                _set_dtype(folder / "config.json", chosen)
                with _naming_code(found.path, trust=trust):
                    described = AutoConfig.from_pretrained(folder, trust_remote_code=trust)
                    model = _model(described, trust=trust)
                named = as_in_files(described, weights)
                _write_shards(folder, ((name, each.to(chosen)) for name, each in named), shard_bytes)
                _check_complete(folder, model)
    return found.path


def _saved(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The keys of a training config that an export needs, of a checkpoint of any command."""
    config = checkpoint.config
    if "actor" in config:
        return saved_config(checkpoint, load_plugins().config_aliases())
    with reading(checkpoint.path / "state.json"):
        strategy = config["trainer"]["strategy"]
        return {"model": config["model"], "actor": {"strategy": strategy}, "plugins": config["plugins"]}


def _names(checkpoint: Path) -> list[Path]:
    """The files in the manifest of a whole checkpoint, seen from its folder."""
    return [Path(name) for name in json.loads(read_text(checkpoint / manifest.NAME))["files"]]


def _copy(checkpoint: Path, part: str, out: Path) -> None:
    """Copy the files of a folder that the manifest lists: a link to a file of this machine that it does not stays."""
    for name in _names(checkpoint):
        if name.parts[0] == part and len(name.parts) > 1:
            target = out.joinpath(*name.parts[1:])
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint / name, target)


def _strategy(path: Path, config: TrainConfig) -> Entry[TrainingStrategyFactory]:
    """The strategy that wrote the checkpoint: an installed one, or the code named in the checkpoint."""
    plugins = load_plugins(tuple(config.plugins.load))
    strategy = config.actor.strategy
    name = strategy.get("name") if isinstance(strategy, dict) else strategy
    try:
        return plugins.registries.training_strategies.get(str(name))
    except UntrustedError as error:
        named = ", ".join(dict.fromkeys([*plugins.untrusted, *([str(name)] if ":" in str(name) else [])]))
        raise UntrustedError(
            f"{path} was written by training strategy '{name}', which is not installed; the checkpoint names code: "
            f"{named}. Read that code, then add --trust to run it"
        ) from error


def _weights(
    strategy: Entry[TrainingStrategyFactory], path: Path, config: TrainConfig
) -> Iterator[tuple[str, Tensor]] | None:
    """The weights from the strategy; None if it cannot read them and the checkpoint already has a model folder."""
    read = strategy.load_fact("read_checkpoint")
    ready = any(name.parts[0] == "huggingface" and len(name.parts) > 1 for name in _names(path))
    if read is None and not ready:
        raise ModelError(
            f"training strategy '{strategy.name}' cannot read a checkpoint without its ranks, and {path} has no "
            "huggingface/: trainer.save_huggingface=always writes one"
        )
    try:
        return None if read is None else read(path / "actor", config.model)
    except ModelError:
        if ready:
            return None
        raise


def _find(path: Path) -> Checkpoint:
    if (path / "state.json").is_file():
        if why := manifest.damage(path):
            raise ConfigError("CHECKPOINT", f"{path} is damaged: {why}")
        return Checkpoint.read(path)
    newest = newest_whole(path)
    if newest is None:
        raise ConfigError("CHECKPOINT", f"{path} is neither a checkpoint nor a run with one")
    return newest


def _write_shards(folder: Path, weights: Iterator[tuple[str, Tensor]], shard_bytes: int) -> None:
    """``model.safetensors``, or several files with an index, under the names of transformers."""
    shards: list[list[str]] = []
    total = size = 0
    shard: dict[str, Tensor] = {}

    def close() -> None:
        save_file(shard, folder / f"shard-{len(shards)}", {"format": "pt"})
        shards.append(list(shard))
        shard.clear()

    for name, tensor in weights:
        length = tensor.numel() * tensor.element_size()
        if shard and size + length > shard_bytes:
            close()
            size = 0
        shard[name] = tensor.contiguous()
        size, total = size + length, total + length
    close()
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / "model.safetensors")
        return
    places: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"shard-{number}").rename(folder / file)
        places.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _set_dtype(path: Path, dtype: torch.dtype) -> None:
    config = json.loads(path.read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2) + "\n")


@contextmanager
def _naming_code(checkpoint: Path, *, trust: bool) -> Iterator[None]:
    """A block in which transformers looks for the classes of a model, without a question on the terminal.

    Raises:
        UntrustedError: they are code of the model, and ``trust`` is false.
    """
    try:
        yield
    except ValueError as error:
        named = json.loads(read_text(checkpoint / "model" / "config.json")).get("auto_map")
        if trust or not named:
            raise
        code = ", ".join(map(str, named.values()))
        raise UntrustedError(
            f"{checkpoint}/model/config.json names code of the model (auto_map: {code}). Read that code, then add "
            "--trust to run it"
        ) from error


def _model(config: Any, *, trust: bool) -> Any:
    """The model without weights."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    scores = any(name.endswith("ForSequenceClassification") for name in config.architectures or ())
    auto: Any = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(config, trust_remote_code=trust)


def _check_complete(folder: Path, model: Any) -> None:
    """Raise ModelError if the folder lacks a weight that transformers needs; no weight is read."""
    from safetensors import safe_open

    written: set[str] = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as weights:
            written.update(weights.keys())
    lacking = sorted({name for name, _ in as_in_files(model.config, model.named_parameters())} - written)
    if lacking:
        raise ModelError(f"the checkpoint lacks {len(lacking)} of the model's weights, such as '{lacking[0]}'")
