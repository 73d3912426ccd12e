"""Checkpoints, for resuming and for ``corerl export``."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.distributed.checkpoint import state_dict_saver

from corerl.checkpoint import manifest, random_state
from corerl.checkpoint.resume import find_checkpoint
from corerl.contracts.config import ModelConfig, TrainConfig, TrainerConfig
from corerl.errors import CoreRLError
from corerl_fsdp.reading import read_sharded
from corerl_fsdp.shard_files import ShardWriter
from corerl_testing.tiny_model import tiny_model
from corerl_tools.resumed import check_same
from corerl_torch.loading import load_model
from scripts.fuzz import mutations
from scripts.fuzz.command import corerl

STRATEGIES = ("torch", "fsdp")
JSON = ("state.json", "manifest.json", "actor/metadata.json", "model/config.json")
BINARY = ("actor/weights.safetensors", "actor/__0_0.distcp", "random-0.pt", "../latest", "model/tokenizer.json")
LINKS = ("actor/weights.safetensors", "state.json", "model/config.json", "model")


class Checkpoints:
    """See :class:`scripts.fuzz.targets.Target`."""

    name, seconds, processes = "checkpoints", 30.0, False
    cases = st.tuples(
        st.sampled_from(STRATEGIES),
        st.one_of(
            st.tuples(st.just("tree"), st.sampled_from(JSON), mutations.edits),
            st.tuples(st.just("bytes"), st.sampled_from((*JSON, *BINARY)), mutations.cuts),
            st.tuples(st.just("text"), st.sampled_from((*JSON, "../latest")), st.sampled_from(sorted(mutations.DEEP))),
            st.tuples(
                st.just("link"), st.sampled_from(LINKS), st.sampled_from(("/etc/passwd", "/nowhere", "..", "/dev/zero"))
            ),
        ),
    )

    def prepare(self, folder: Path) -> None:
        model = tiny_model()
        self.config = TrainConfig(ModelConfig(str(model)), trainer=TrainerConfig(output_dir=str(folder / "none")))
        weights = dict(load_model(self.config.model, "lm", device="cpu", dtype=torch.float32, seed=0).state_dict())
        self.made = folder
        for strategy in STRATEGIES:
            checkpoint = folder / strategy / "checkpoints" / "global_step_1"
            (checkpoint / "actor").mkdir(parents=True)
            shutil.copytree(model, checkpoint / "model", ignore=shutil.ignore_patterns("*.safetensors"))
            if strategy == "torch":
                named = {name: each.clone() for name, each in weights.items() if name != "lm_head.weight"}
                save_file(named, checkpoint / "actor" / "weights.safetensors")
            else:
                named = {f"model.{name}": each for name, each in weights.items()}
                state_dict_saver.save(named, storage_writer=ShardWriter(checkpoint / "actor"), no_dist=True)
            random_state.write(random_state.present(), checkpoint)
            state = {"step": 1, "dtype": "fp32", "sampler": {"position": 1}, "kl_coef": 0.1, "trackers": {}}
            config = asdict(self.config)
            config["actor"]["strategy"] = strategy
            state |= {"config": config, "versions": {"corerl": "0.1"}, "digests": {"a": "1"}, "scores": {"1": 0.5}}
            (checkpoint / "state.json").write_text(json.dumps(state))
            manifest.write(checkpoint)
            (checkpoint.parent / "latest").write_text(checkpoint.name)
            (checkpoint.parents[1] / "config.yaml").touch()

    def read(self, case: Any, folder: Path) -> None:
        strategy, change = case
        run = folder / "run"
        shutil.copytree(self.made / strategy, run)
        checkpoint = run / "checkpoints" / "global_step_1"
        _change(checkpoint, change)
        self._resume(run, checkpoint)
        corerl("export", str(run), str(folder / "one"))
        corerl("export", str(checkpoint), str(folder / "two"))
        if (checkpoint / "actor" / "metadata.json").is_file():
            try:
                for _ in read_sharded(checkpoint / "actor", self.config.model):
                    pass
            except CoreRLError:
                pass

    def _resume(self, run: Path, checkpoint: Path) -> None:
        for mode in (str(run), str(checkpoint)):
            config = TrainConfig(self.config.model, trainer=TrainerConfig(resume_mode=mode, resume_with_changes=True))
            try:
                found = find_checkpoint(config, 100)
                if found is not None:
                    check_same(found, config, {}, {}, {})
                    random_state.restore(found.path)
            except CoreRLError:
                pass


def _change(checkpoint: Path, change: tuple[str, str, Any]) -> None:
    """Change a file; whoever does so can write a manifest that fits."""
    kind, name, given = change
    path = checkpoint / name
    if not path.exists():
        return
    if kind == "link":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.symlink_to(given)
        return
    content = path.read_bytes()
    if kind == "tree":
        content = json.dumps(mutations.changed(json.loads(content), given)).encode()
    else:
        content = mutations.damaged(content, given) if kind == "bytes" else mutations.DEEP[given].encode()
    path.write_bytes(content)
    if path.name != manifest.NAME:
        manifest.write(checkpoint)
