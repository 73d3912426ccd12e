import json
import math

import pytest

from corerl_tools import metrics_tail
from corerl_tools.metrics_tail import last_step, records_backwards


@pytest.mark.parametrize("tail", [1, 7, 16, 1000])
@pytest.mark.parametrize("cut", ["", '{"step": 10, "a', "x" * 40])
def test_records_come_from_the_last_to_the_first_without_what_a_kill_cut_off(tmp_path, monkeypatch, tail, cut):
    monkeypatch.setattr(metrics_tail, "TAIL", tail)
    records = [{"step": step, "name": "x" * step} for step in range(10)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + cut)
    assert list(records_backwards(path)) == records[::-1]
    assert last_step(path) == 9


def test_a_number_that_was_not_finite_is_read_as_nan(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": null}\n')
    [record] = records_backwards(path)
    assert record["step"] == 1 and math.isnan(record["a"])


@pytest.mark.parametrize("text", [None, "", '{"step": 1'])
def test_without_a_record_there_is_no_step(tmp_path, text):
    path = tmp_path / "metrics.jsonl"
    if text is not None:
        path.write_text(text)
    assert last_step(path) == -1
