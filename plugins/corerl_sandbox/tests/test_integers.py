import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from corerl_sandbox.scorer.integers import any_integer, integer


@pytest.mark.parametrize("value", [0, -7, 10**4999 + 1, -(10**9000) + 3, 3**20000], ids="abcde")
def test_integers_of_any_length_are_read(value: int) -> None:
    with any_integer():
        text = str(value)
    assert json.loads(f"[{text}]", parse_int=integer) == [value]


def test_enormous_integers_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 100000 digits"):
        integer("9" * 100_001)


def test_the_limit_returns_after_all_threads() -> None:
    before = sys.get_int_max_str_digits()

    def work(_: int) -> int:
        with any_integer():
            return len(str(10**5000))

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(work, range(200))) == {5001}
    assert sys.get_int_max_str_digits() == before
