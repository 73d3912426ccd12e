"""What the checks of batch filters run; wrong ones are in planted/batch_filters.py."""

from typing import Any

import pytest
from planted.batch_filters import different_scores, keep_all


@pytest.mark.parametrize("keep", [different_scores, keep_all])
def test_no_check_of_a_right_filter_is_skipped(outcomes: Any, keep: Any) -> None:
    assert {result.status for result in outcomes("batch_filters", keep).values()} == {"ok"}
