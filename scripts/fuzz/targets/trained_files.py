"""The files of a role in a checkpoint, for resuming: ``torch`` with and without adapters."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import CoreRLError
from corerl_fsdp.reading import read_single
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_testing.tiny_model import tiny_model
from scripts.fuzz import mutations

RANKS = (0, 2)
FILES = ("weights.safetensors", "optimizer.pt", "lora.json")


class TrainedFiles:
    """See :class:`scripts.fuzz.targets.Target`."""

    name, seconds, processes = "trained-files", 30.0, False
    cases = st.tuples(
        st.sampled_from(RANKS),
        st.one_of(
            st.tuples(st.sampled_from(FILES), st.just("bytes"), mutations.cuts),
            st.tuples(st.just("lora.json"), st.just("tree"), mutations.edits),
            st.tuples(st.just("optimizer.pt"), st.just("tree"), mutations.edits),
            st.tuples(st.sampled_from(FILES), st.just("text"), st.sampled_from(sorted(mutations.DEEP))),
        ),
    )

    def prepare(self, folder: Path) -> None:
        self.strategies, self.made = {}, folder
        self.model = str(tiny_model())
        for rank in RANKS:
            model = ModelConfig(self.model, lora_rank=rank)
            spec = StrategySpec(model, "cpu", MicroBatching(max_sequences=9), OptimConfig(lr=1e-3), total_steps=9)
            self.strategies[rank] = SingleDeviceStrategy(spec)
            (folder / str(rank)).mkdir()
            self.strategies[rank].save(folder / str(rank))()

    def read(self, case: Any, folder: Path) -> None:
        rank, (name, kind, given) = case
        saved = folder / "actor"
        shutil.copytree(self.made / str(rank), saved)
        file = saved / name
        if not file.exists():
            return
        file.write_bytes(_changed(file.read_bytes(), name, kind, given))
        for read in (
            lambda: self.strategies[rank].load(saved),
            lambda: sum(each.numel() for _, each in read_single(saved, ModelConfig(self.model))),
        ):
            try:
                read()
            except CoreRLError as error:
                assert "\n" not in str(error), error


def _changed(content: bytes, name: str, kind: str, given: Any) -> bytes:
    if kind == "bytes":
        return mutations.damaged(content, given)
    if kind == "text":
        return mutations.DEEP[given].encode()
    if name == "lora.json":
        return json.dumps(mutations.changed(json.loads(content), given)).encode()
    packed = io.BytesIO()
    torch.save(mutations.changed(torch.load(io.BytesIO(content), weights_only=True), given), packed)
    return packed.getvalue()
