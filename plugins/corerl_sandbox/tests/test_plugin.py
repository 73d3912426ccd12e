import pytest

from corerl.plugins import load_plugins
from corerl.registry.scorers import keys_for, table_of_sources


@pytest.mark.parametrize("source", ["codeforces", "codecontests", "code_contests", "apps", "taco"])
def test_published_sources_of_programs_are_scored_by_code_alone(source: str) -> None:
    table = table_of_sources(load_plugins().registries.scorers)
    assert [entry.name for key in keys_for(source, table) for entry in table[key]] == ["code"]
