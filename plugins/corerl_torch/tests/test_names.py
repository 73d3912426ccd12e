"""Names of weights beside those of the files that transformers writes."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from corerl.contracts.config import ModelConfig
from corerl.errors import RunError
from corerl_engines.weights import ExpectedWeights
from corerl_torch.loading import load_causal_lm
from corerl_torch.weights.names import as_in_files
from families import write_config


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_a_stream_has_the_names_of_files_and_engines_expect_them(tmp_path: Path, family: str) -> None:
    named = ModelConfig(str(write_config(tmp_path, family, tie_word_embeddings=False)), load_format="dummy")
    model = load_causal_lm(named, device="cpu", dtype=torch.float32)
    model.save_pretrained(tmp_path / "files")
    files = load_file(tmp_path / "files" / "model.safetensors")
    stream = dict(as_in_files(model.config, ((name, each.detach()) for name, each in model.named_parameters())))
    assert stream.keys() == files.keys()
    assert all(torch.equal(tensor, files[name]) for name, tensor in stream.items())
    assert dict(as_in_files(model.config, stream.items())).keys() == files.keys()
    assert [name for name, _ in ExpectedWeights(named).checked(stream.items())] == list(stream)
    if family == "qwen3_moe":
        with pytest.raises(RunError, match="unknown to the rollout model"):
            list(ExpectedWeights(named).checked(model.named_parameters()))
