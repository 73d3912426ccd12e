"""The table of docs/models.md names tests that exist, and every cell has one or says that it has none."""

import ast
from pathlib import Path

import transformers

from corerl_torch.families.columns import COLUMNS
from corerl_torch.families.table import FAMILIES, family_of
from corerl_torch.families.vision import VISION, VISION_COLUMNS, vision_family_of

TABLES = ((FAMILIES, COLUMNS), (tuple(VISION.values()), VISION_COLUMNS))
ROOT = Path(__file__).parents[4]


def test_every_linked_test_exists() -> None:
    links = {family.test(column) for families, columns in TABLES for family in families for column in columns} - {""}
    assert len(links) > 10
    for link in links:
        path, _, function = link.partition("::")
        names = {
            node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)
        }
        assert function in names, link


def test_every_state_but_not_proven_has_a_test() -> None:
    for families, columns in TABLES:
        for family in families:
            assert family.states.keys() | family.proofs.keys() <= {column.key for column in columns}, family.name
            for column in columns:
                assert (family.test(column) == "") == (family.state(column) == "not proven"), (family.name, column.key)


def test_families_are_those_of_transformers() -> None:
    for family in FAMILIES:
        config = getattr(transformers, family.config)
        assert config.model_type == family.model_type and family_of(family.model_type) is family
        assert config in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    assert family_of("cohere") is None


def test_families_of_images_are_those_of_transformers() -> None:
    for family in VISION.values():
        config = getattr(transformers, family.config)
        assert config.model_type == family.model_type and vision_family_of(family.model_type) is not None
        assert config in transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    assert vision_family_of("aya_vision") is None
