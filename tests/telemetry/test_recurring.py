"""Notices that may recur at every step."""

from corerl.terminal import Recurring


def test_the_notices_of_a_kind_are_printed_at_growing_distances_and_the_printed_ones_are_counted() -> None:
    lines: list[str] = []
    recurring = Recurring(lines.append)
    for step in range(1, 186):
        recurring("zero", f"step {step}")
    assert lines == [
        "step 1",
        "step 2 (2 such notices so far; the next is printed at 4)",
        "step 4 (4 such notices so far; the next is printed at 8)",
        "step 8 (8 such notices so far; the next is printed at 16)",
        "step 16 (16 such notices so far; the next is printed at 32)",
        "step 32 (32 such notices so far; the next is printed at 64)",
        "step 64 (64 such notices so far; the next is printed at 128)",
        "step 128 (128 such notices so far; the next is printed at 256)",
    ]


def test_kinds_have_counts_of_their_own_and_endlessly_many_kinds_print_few_lines() -> None:
    lines: list[str] = []
    recurring = Recurring(lines.append)
    recurring("a", "first"), recurring("b", "other")
    assert lines == ["first", "other"]
    for number in range(1000):
        recurring(f"text from outside {number}", "further")
    # 30 more kinds, then 970 notices of the rest: at 1, 2, 4 … 512
    assert len(lines) == 2 + 30 + 10
