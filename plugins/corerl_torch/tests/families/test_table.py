"""The table of docs/models.md names tests that exist, and every cell has one or says that it has none."""

import ast
from pathlib import Path

import transformers

from corerl_torch.families.columns import COLUMNS
from corerl_torch.families.table import FAMILIES, family_of

ROOT = Path(__file__).parents[4]


def test_every_linked_test_exists() -> None:
    links = {family.test(column) for family in FAMILIES for column in COLUMNS} - {""}
    assert len(links) > 10
    for link in links:
        path, _, function = link.partition("::")
        names = {
            node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)
        }
        assert function in names, link


def test_every_state_but_not_proven_has_a_test() -> None:
    for family in FAMILIES:
        assert family.states.keys() | family.proofs.keys() <= {column.key for column in COLUMNS}, family.name
        for column in COLUMNS:
            assert (family.test(column) == "") == (family.state(column) == "not proven"), (family.name, column.key)


def test_families_are_those_of_transformers() -> None:
    for family in FAMILIES:
        config = getattr(transformers, family.config)
        assert config.model_type == family.model_type and family_of(family.model_type) is family
        assert config in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    assert family_of("cohere") is None
