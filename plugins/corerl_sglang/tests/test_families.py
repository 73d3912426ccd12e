"""Families of docs/models.md in SGLang: log-probs are the trainer's, of a folder and of an update."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from corerl_sglang.backend import SglangBackend
from corerl_torch.families.columns import COLUMNS
from corerl_torch.families.table import FAMILIES, Family
from engine_claims import a_family_has_the_trainers_log_probs
from sglang_engine import Policy, begin_family

pytestmark = pytest.mark.xdist_group("sglang")

EXPORT = next(column for column in COLUMNS if column.key == "sglang.export")
TESTED = [each for each in FAMILIES if each.state(EXPORT) == "proven"]

AT_A_TIME = 5
"""engines that start"""

Started = dict[str, tuple[Path, SglangBackend]]


@pytest.fixture(scope="module")
def started(engine_python: str) -> Iterator[Started]:
    """model_type -> folder and backend, of the engines that start or run."""
    engines: Started = {}
    yield engines
    for _, backend in engines.values():
        backend.close()


@pytest.mark.parametrize("family", TESTED, ids=lambda each: each.model_type)
def test_a_family_has_the_trainers_log_probs(
    family: Family, started: Started, engine_python: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = TESTED.index(family)
    for each in TESTED[first : first + AT_A_TIME]:
        if each.model_type not in started:
            folder = tmp_path_factory.mktemp(each.model_type)
            started[each.model_type] = folder, begin_family(folder, engine_python, each)
    folder, backend = started[family.model_type]
    try:
        backend.started()
        print(a_family_has_the_trainers_log_probs(backend, Policy(folder, torch.bfloat16)))
    finally:
        backend.close()
