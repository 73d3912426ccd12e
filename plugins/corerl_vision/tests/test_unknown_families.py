"""A family of models of images without a proof: the generic way and a note, or one sentence of refusal."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError, ModelError
from corerl_check import Finding, Machine
from corerl_torch.families.findings import look
from corerl_torch.media import Ways

REFUSED = {
    "idefics3": "places images in its embeddings by a way of its own: it is not supported",
    "paligemma": "makes masks of attention from token_type_ids, and no test proves them: it is not supported",
    "gemma3n": "makes masks of attention from token_type_ids, and no test proves them: it is not supported",
}
AT_THE_START = "are compared with its own forward at the start of a run, in the whole model"


def findings(folder: Path, family: str) -> list[Finding | ConfigError]:
    transformers.AutoConfig.for_model(family).save_pretrained(folder)
    return list(look("torch", "actor.strategy", ModelConfig(str(folder)), Machine(0), packs=False))


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_with_a_way_of_its_own_is_refused(tmp_path: Path, family: str) -> None:
    """Before a model is loaded, and when it is loaded."""
    body: Any = transformers.AutoModel._model_mapping[type(transformers.AutoConfig.for_model(family))]
    with pytest.raises(ModelError) as error:
        Ways.of(body, family)
    assert str(error.value).startswith(f"model.path: the family {family} {REFUSED[family]}")
    [found] = findings(tmp_path, family)
    assert isinstance(found, ConfigError) and str(found) == str(error.value)


def test_an_unknown_family_is_tried_with_a_note(tmp_path: Path) -> None:
    comparison, note = findings(tmp_path, "aya_vision")
    assert isinstance(comparison, Finding) and comparison.sentence.endswith(AT_THE_START)
    assert isinstance(note, Finding) and note.severity == "note"
    assert note.sentence.startswith("no test proves the family 'aya_vision' (docs/models.md); not proven under torch: ")


def test_a_family_of_the_table_has_no_note_but_that_of_the_comparison_at_the_start(tmp_path: Path) -> None:
    [comparison] = findings(tmp_path, "internvl")
    assert isinstance(comparison, Finding) and comparison.sentence.endswith(AT_THE_START)
