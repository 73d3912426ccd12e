"""What the checks of value losses run; wrong ones are in planted/value_losses.py."""

from typing import Any

import pytest
from planted.value_losses import clipped, squared


@pytest.mark.parametrize("loss", [squared, clipped])
def test_no_check_of_a_right_loss_is_skipped(outcomes: Any, loss: Any) -> None:
    statuses = {name: result.status for name, result in outcomes("value_losses", loss).items()}
    assert {status for name, status in statuses.items() if name != "same_on_cuda"} == {"ok"}
