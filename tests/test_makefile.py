"""What `make quickstart` installs."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_plugins_of_the_quickstart_depend_on_no_other_plugin() -> None:
    """pip would look for it in an index, which has none of them."""
    found = re.search(r"^LEARNERS := .*corerl_,(.*)\)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found
    own = {f"corerl-{name}" for name in found[1].split()}
    for name in own:
        project = tomllib.loads((ROOT / "plugins" / name.replace("-", "_") / "pyproject.toml").read_text())["project"]
        needed = {re.split(r"[^\w-]", each)[0] for each in project["dependencies"]}
        assert {each for each in needed if each.startswith("corerl-")} <= own, name
