"""The kit against its planted faults."""

import pytest

from corerl.testing import planted
from corerl.testing.checks import Check
from corerl.testing.results import CheckSkipped


@pytest.mark.parametrize("check", [pytest.param(each, id=f"{each.entry}-{each.name}") for each in planted.checks()])
def test_the_kit_catches_what_is_wrong_and_passes_what_is_right(check: Check) -> None:
    try:
        check.run()
    except CheckSkipped as skipped:
        pytest.skip(str(skipped))
