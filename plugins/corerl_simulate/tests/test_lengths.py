"""Lengths of responses from files of rollouts."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.errors import RequestError
from corerl_simulate.lengths import lengths_of


def test_a_damaged_file_is_left_out_and_named(tmp_path, capsys):
    pq.write_table(pa.table({"response_length": [3, 0, 5]}), tmp_path / "b.parquet")
    (tmp_path / "a.parquet").write_bytes(bytes(100))
    (tmp_path / "c.parquet").mkdir()
    drawn = lengths_of(str(tmp_path))
    assert {drawn.of(seed, 0) for seed in range(40)} == {3, 5}
    err = capsys.readouterr().err
    assert "a.parquet is damaged" in err and "c.parquet cannot be read" in err and "b.parquet" not in err
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(RequestError, match="no column response_length"):
        lengths_of(str(tmp_path))


@pytest.mark.parametrize("given", ["lognormal:800:inf", "lognormal:800:900", "lognormal:1e300:1", "lognormal:nan:1"])
def test_lengths_that_no_number_holds_are_refused(given):
    with pytest.raises(RequestError, match=r"write lognormal:MEAN:SIGMA, .*; MEAN from 1 to 1000000000, SIGMA from 0"):
        lengths_of(given)
