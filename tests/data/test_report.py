from datetime import date

import pytest

from corerl.data.report import LoadReport, Location
from corerl.errors import DataError


def test_the_report_counts_every_reason_and_shows_the_first_three_places() -> None:
    report = LoadReport(rows_read=10, truncated=2)
    for row in (1, 4, 5, 8):
        report.skip("empty", Location("a.parquet", row))
    report.skip("too long", Location("b.jsonl", 3, "line"))
    assert report.kept == 5
    assert str(report).splitlines() == [
        "10 rows read, 5 kept",
        "  4 skipped, empty (a.parquet, row 1; row 4; row 5; and 1 more)",
        "  1 skipped, too long (b.jsonl, line 3)",
        "  2 cut to the length limit",
    ]


def test_no_row_left_is_an_error_that_says_why() -> None:
    report = LoadReport(rows_read=1)
    report.skip("empty", Location("a.parquet", 0))
    with pytest.raises(DataError, match=r"none of 1 rows can be used: 1 skipped, empty \(a\.parquet, row 0\)"):
        report.require_kept()


def digest(*rows):
    report = LoadReport()
    for row in rows:
        report.add(row)
    return report.digest


class Image:
    """Its text has an address, as that of many objects."""


def test_a_digest_is_of_the_content_of_rows_in_their_order():
    rows = {"text": "a", "number": 1.5}, {"text": "ä\ud800", "image": b"\xff", "day": date(2026, 1, 2), "none": None}
    assert digest(*rows) == digest({"number": 1.5, "text": "a"}, dict(rows[1])) != ""
    others = [rows[::-1], rows[:1], (rows[0], {**rows[1], "image": b"\xfe"}), (rows[0], {**rows[1], "none": 0})]
    assert len({digest(*each) for each in (rows, *others)}) == 5
    assert digest({"image": Image()}) == digest({"image": Image()})
    assert digest({1: "a", "b": 2}) != digest({1: "a", "b": 3})
    looped = []
    looped.append(looped)
    assert digest(looped) != ""
