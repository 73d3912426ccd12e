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
