import functools
import json
import time
from typing import Any

import numpy as np
import pytest

from corerl.contracts.reward_managers import RewardRequest
from corerl.errors import ConfigError
from corerl_rewards.parallel import ParallelRewardManager
from corerl_sandbox.options import CodeOptions
from corerl_sandbox.run import SandboxError, run
from corerl_sandbox.scorer import code as module
from corerl_sandbox.scorer.code import _tests, code, same_text
from corerl_sandbox.scorer.fences import last_block

DOUBLE = {"inputs": ["1\n", "4\n", "-3\n"], "outputs": ["2\n", "8\n", "-6\n"]}
ADD = {"fn_name": "add", "inputs": [[1, 2], [0.5, 0.25], ["a", "b"]], "outputs": [3, 0.75, "ab"]}


def score(program: str, truth: Any, **options: Any) -> tuple[float, float]:
    response = f"Here it is:\n```python\n{program}\n```\nDone."
    result = code(response, truth, "apps", {}, CodeOptions(**options))
    assert result["extracted"] == program + "\n"
    return result["score"], result["passed"]


def test_a_program_that_prints_the_outputs_scores_1() -> None:
    assert score("print(2 * int(input()))", DOUBLE) == (1.0, 1.0)
    assert score("print(2 * int(input()))", json.dumps(DOUBLE)) == (1.0, 1.0)


def test_one_failed_test_is_a_score_of_0_or_with_continuous_the_share() -> None:
    program = "n = int(input())\nprint(2 * n if n > 0 else 'negative')"
    assert score(program, DOUBLE) == (0.0, 2 / 3)
    assert score(program, DOUBLE, continuous=True) == (2 / 3, 2 / 3)
    assert score(program, DOUBLE, max_tests=2) == (1.0, 1.0)


@pytest.mark.parametrize(
    "program",
    [
        "def add(a, b):\n    return a + b",
        "class Solution:\n    def add(self, a, b):\n        return a + b",
        "def add(a, b):\n    print('noise')\n    return a + b",
    ],
)
def test_a_function_or_a_method_is_called(program: str) -> None:
    assert score(program, ADD) == (1.0, 1.0)


def test_an_exception_ends_the_tests_of_a_function() -> None:
    assert score("def add(a, b):\n    return a + b if a != 0.5 else 1 / 0", ADD, continuous=True) == (1 / 3, 1 / 3)


def test_what_a_function_returns_is_compared_by_value_and_type() -> None:
    truth = {"fn_name": "f", "inputs": [[0], [1], [2], [3]], "outputs": [[1, [2, 3]], [7], True, {"a": 1.0}]}
    right = "def f(n): return [(1, (2, 3)), 7, True, {'a': 1.0000000001}][n]"
    assert score(right, truth) == (1.0, 1.0)
    assert score("def f(n): return [(1, (2, 4)), 8, 1, {'a': 1.1}][n]", truth, continuous=True) == (0.0, 0.0)


def test_asserts_run_after_the_program() -> None:
    truth = {"asserts": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]}
    assert score("def add(a, b):\n    return a + b", truth) == (1.0, 1.0)
    assert score("def add(a, b):\n    return 3", truth) == (0.0, 0.5)


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "x = bytearray(3 << 30)",
        "print('2\\n' * 10_000_000)",
        "raise SystemExit",
        "import os\nwhile True: os.fork()",
    ],
)
def test_a_program_that_fails_is_a_score_of_0_and_no_error(program: str) -> None:
    assert score(program, DOUBLE, timeout=1.0) == (0.0, 0.0)
    assert score(program, ADD, timeout=1.0) == (0.0, 0.0)


def test_after_an_endless_loop_no_other_test_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    monkeypatch.setattr(module, "run", lambda *arguments: runs.append(arguments) or run(*arguments))  # type: ignore[func-returns-value]
    assert score("while True: pass", DOUBLE, timeout=0.5, continuous=True) == (0.0, 0.0)
    assert len(runs) == 1


def test_a_function_that_prints_forged_results_does_not_pass() -> None:
    forger = (
        "import os\nfor fd in range(20):\n    try: os.write(fd, b'4\\n4\\n4\\n')\n    except OSError: pass\n"
        "def add(a, b): return 0"
    )
    assert score(forger, ADD) == (0.0, 0.0)


CHEATS = {
    "sys.exit(0)": "import sys\nsys.exit(0)",
    "sys.exit(0) in the function": "import sys\ndef add(a, b): sys.exit(0)",
    "os._exit(0)": "import os\ndef add(a, b): os._exit(0)",
    "equal to everything": "class Any:\n    def __eq__(self, other): return True\n"
    "    def __ne__(self, other): return False\n    __hash__ = None\ndef add(a, b): return Any()",
    "a number equal to everything": "class Any(int):\n    def __eq__(self, other): return True\n"
    "    __hash__ = int.__hash__\ndef add(a, b): return Any(0)",
    "patched builtins": "import builtins, json, operator\nbuiltins.print = builtins.exec = lambda *_: None\n"
    "builtins.eval = lambda *_: True\nbuiltins.all = builtins.any = lambda *_: True\n"
    "json.dumps = lambda *_: 'true'\noperator.eq = lambda *_: True\ndef add(a, b): return 0",
    "SystemExit in a thread": "import os, threading\ndef end(): os._exit(0)\n"
    "def add(a, b):\n    t = threading.Thread(target=end); t.start(); t.join(); raise SystemExit(0)",
    "an exit at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): raise SystemExit",
    "AssertionError is no error": "import builtins\nbuiltins.AssertionError = type('A', (Exception,), {})\n"
    "__debug__ if True else None\ndef add(a, b): return 0",
    "forged replies": "import os\nfor fd in range(64):\n    try: os.write(fd, b'null\\n' * 9 + b'true\\n' * 9)\n"
    "    except OSError: pass\ndef add(a, b): return 0",
    "expected values in the process": "import gc, json\ntext = open('request.json').read()\n"
    "def add(a, b):\n    for n in (1003, 2004):\n        if str(n) in text: return n\n    return 0",
    "frames": "import sys\ndef add(a, b):\n    frame = sys._getframe()\n    while frame:\n"
    "        for value in frame.f_locals.values():\n            if str(1000 + 3) in repr(value): return 1000 + 3\n"
    "        frame = frame.f_back\n    return 0",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_program_that_cheats_asserts_scores_0(cheat: str) -> None:
    truth = {"asserts": ["assert add(1, 1002) == 1003", "assert add(2, 2002) == 2004 and not add(1, 1) != 2"]}
    assert score(CHEATS[cheat], truth) == (0.0, 0.0)
    assert score("def add(a, b): return a + b", truth) == (1.0, 1.0)


def test_a_function_under_test_may_have_the_name_of_a_builtin() -> None:
    """As in MBPP, task 126: the sum of the common divisors."""
    truth = {"asserts": ["assert sum(10, 15) == 6", "assert sum(100, 150) == 93"]}
    right = "def sum(a, b): return __builtins__['sum'](n for n in range(1, a + 1) if a % n == b % n == 0)"
    assert score(right, truth) == (1.0, 1.0)
    assert score("def sum(a, b): return 6", truth) == (0.0, 0.5)


def test_a_function_under_test_may_have_the_name_of_a_class_of_the_standard_library() -> None:
    truth = {"asserts": ["assert time(3, 4) == '03:04'"]}
    assert score("def time(h, m): return f'{h:02}:{m:02}'", truth) == (1.0, 1.0)
    assert score("def time(h, m): return ''", truth) == (0.0, 0.0)


def test_a_builtin_of_the_program_compares_nothing() -> None:
    truth = {"asserts": ["assert f(1) == set((4, 5))", "assert abs(f(1) - 3.14) < 1e-6", "assert set(f(1)) == {4, 5}"]}
    assert score("set = lambda *_: 1\nabs = lambda _: 0\ndef f(n): return 1", truth) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("returned", "statement"),
    [
        ("range(3)", "assert f() == range(3) and list(f()) == [0, 1, 2]"),
        ("iter([2, 1])", "assert sorted(f()) == [1, 2]"),
        ("3", "assert '%d' % f() == '3' and [0] * f() == [0, 0, 0]"),
        ("(1, [2.5, {'a': {1}}], b'x', 1j)", "assert f() == (1, [2.5, {'a': {1}}], b'x', 1j)"),
        ("float('nan')", "assert f() != f()"),
        ("None", "assert f() is None"),
    ],
)
def test_what_an_assert_holds_of_in_python_passes(returned: str, statement: str) -> None:
    assert score(f"def f(): return {returned}", {"asserts": [statement]}) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("returned", "statement"),
    [
        ("[n * (2**61 - 1) for n in range(40_000)]", "assert set(f()) == {1}"),  # all of one hash
        ("range(10**15)", "assert list(f()) == [1]"),
        ("'%999999999999d'", "assert f() % 5 == 'x'"),
        ("[0]", "assert f() * 10**12 == [0]"),
        ("__import__('functools').reduce(lambda inner, _: [inner], range(900), [])", "assert f() == [1]"),
    ],
)
def test_what_a_program_returns_costs_the_scorer_neither_time_nor_memory(returned: str, statement: str) -> None:
    before = time.process_time()
    assert score(f"def f(): return {returned}", {"asserts": [statement]}, timeout=2.0) == (0.0, 0.0)
    assert time.process_time() - before < 2.0


SLEEPS = {"inputs": ["1\n"] * 10, "outputs": ["1\n"] * 10}


@pytest.mark.parametrize("continuous", [False, True])
def test_ten_tests_of_2_s_use_up_the_budget_and_score_0_or_the_share(continuous: bool) -> None:
    """As in a run with reward.timeout=8, whose deadline would mask the sample."""
    scorer = functools.partial(code, options=CodeOptions(continuous=continuous).within(8.0))
    manager = ParallelRewardManager({"apps": scorer}, num_workers=1, timeout=8.0)
    response = "```python\nimport time\ntime.sleep(2)\nprint(1)\n```"
    try:
        [result] = manager.score([RewardRequest(response, SLEEPS, "apps")])
    finally:
        manager.close()
    assert (result.error, result.score) == (None, 0.2 if continuous else 0.0)
    assert result.components["passed"] == 0.2


def test_an_endless_program_is_0_within_its_budget() -> None:
    options = CodeOptions(timeout=60.0, program_timeout=1.0)
    start = time.process_time()
    assert code("```python\nwhile True: pass\n```", DOUBLE, "apps", {}, options)["score"] == 0.0
    assert code("```python\nwhile True: pass\n```", ADD, "apps", {}, options)["score"] == 0.0
    assert time.process_time() - start < 5.0


def test_the_budget_of_a_program_must_fit_into_the_time_of_a_score() -> None:
    with pytest.raises(ConfigError, match="too few for scorer 'code' with program_timeout=10 s"):
        CodeOptions(program_timeout=10.0).within(8.0)


@pytest.mark.parametrize(
    "response",
    ["`" * 100_000, "```python\n" * 100_000, "```" + "x```" * 100_000, "``` " * 100_000, "```\n" + "` " * 100_000],
)
def test_the_time_to_find_a_block_is_linear(response: str) -> None:
    start = time.process_time()
    last_block(response)
    assert time.process_time() - start < 1.0


def test_a_program_in_the_reasoning_is_no_answer() -> None:
    block = "```python\nprint(2 * int(input()))\n```"
    wrong = "```python\nprint(0)\n```"
    assert code(f"<think>\n{wrong}\n</think>\n{block}", DOUBLE, "apps", {})["score"] == 1.0
    assert code(f"<think>\n{block}\n</think>\nDone.", DOUBLE, "apps", {})["extracted"] is None
    assert code(f"<think>\n{block}", DOUBLE, "apps", {}, CodeOptions(reasoning="kept"))["score"] == 1.0


def test_no_program_is_a_score_of_0() -> None:
    assert code("I cannot.", DOUBLE, "apps", {}) == {"score": 0.0, "passed": 0.0, "extracted": None}


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\na\n```\n```python\nb\n```", "b\n"),
        ("```\na\n```", "a\n"),
        ("```py\na\n```\n```text\nb\n```", "a\n"),
        ("```cpp\na\n```", None),
        ("```python\nunfinished", None),
    ],
)
def test_the_last_python_block_counts(response: str, program: str | None) -> None:
    assert last_block(response) == program


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1 2\n3\n", "1 2 \n3", True),
        ("1 2 3", "1 2\n3", False),
        ("0.33333333", "0.3333333333", True),
        ("0.34", "0.3333333333", False),
        ("3.0", "3", True),
        ("1000001", "1000000", False),
        ("", "0", False),
    ],
)
def test_outputs_are_compared_word_by_word(printed: str, expected: str, same: bool) -> None:
    assert same_text(printed, expected) is same


@pytest.mark.parametrize("truth", ["42", None, {}, {"inputs": ["1"], "outputs": []}, "[]"])
def test_a_ground_truth_without_tests_is_an_error(truth: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        code("```python\n1\n```", truth, "apps", {})


def test_ground_truths_come_as_arrays_from_parquet() -> None:
    truth = {"fn_name": "add", "inputs": np.array([[1, 2], [3, 4]]), "outputs": np.array([3, 7])}
    assert score("def add(a, b):\n    return a + b", truth) == (1.0, 1.0)


def test_a_sandbox_that_fails_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise SandboxError("no isolation for programs: no seccomp here")

    monkeypatch.setattr(module, "run", broken)
    with pytest.raises(SandboxError):
        code("```python\n1\n```", DOUBLE, "apps", {})


def test_a_ground_truth_whose_inputs_are_a_number_is_an_error_with_words() -> None:
    with pytest.raises(ValueError, match="the ground truth of a program is"):
        _tests('{"inputs": 1, "outputs": [1]}', None)


TEXT = {"fn_name": "join", "inputs": ['[1, 2]\n"a"', '[]\n"b"'], "outputs": ['"12a"', '"b"']}


def test_tests_of_a_function_may_be_json_values_a_line() -> None:
    """As LiveCodeBench writes them."""
    assert score("def join(a, b): return ''.join(map(str, a)) + b", TEXT) == (1.0, 1.0)
    assert score("def join(a, b): return b", TEXT) == (0.0, 0.5)
    truth = {"fn_name": "f", "inputs": ["[3]"], "outputs": ["[3]"]}
    assert score("def f(a): return a", truth) == (1.0, 1.0)
    assert score("def f(a): return a[0]", truth) == (0.0, 0.0)  # 3 is not [3]


@pytest.mark.parametrize(
    "truth",
    [
        {"inputs": "12", "outputs": "33"},
        {"inputs": ["1"], "outputs": "2"},
        {"asserts": "assert f() == 1"},
        {"fn_name": "f", "inputs": ["1 2"], "outputs": ["3"]},
        {"fn_name": "f", "inputs": ["1"], "outputs": ["three"]},
        {"fn_name": "f", "inputs": "1", "outputs": "1"},
        {"fn_name": "f", "inputs": [5], "outputs": [5]},
        {"inputs": {"a": 1}, "outputs": {"b": 1}},
    ],
)
def test_a_text_in_place_of_tests_is_an_error_and_no_score(truth: Any) -> None:
    with pytest.raises(ValueError, match=r"the ground truth of a program is|one JSON value a line|a list of arguments"):
        code("```python\nprint(3)\n```", truth, "apps", {})


def test_a_function_uses_names_that_leetcode_imports() -> None:
    program = (
        "class Solution:\n"
        "    def f(self, nums: List[int], k: Optional[int] = None) -> Dict[int, int]:\n"
        "        heap = nums[:]; heapify(heap)\n"
        "        counts = Counter(nums)\n"
        "        assert math.gcd(4, 6) == gcd(4, 6) == 2 and pow(2, 3, 5) == 3 and bisect_left(nums, 2) == 1\n"
        "        return [heappop(heap), counts[2], int(inf > 1), reduce(add, nums), *accumulate(nums)]\n"
    )
    truth = {"fn_name": "f", "inputs": ["[1, 2, 2]"], "outputs": ["[1, 2, 1, 5, 1, 3, 5]"]}
    assert score(program, truth) == (1.0, 1.0)
    assert score("def f(nums): return undefined_name", truth) == (0.0, 0.0)
    assert score("List = 5\ndef f(nums): return [1, 2, 1, List, 1, 3, 5]", truth) == (1.0, 1.0)
    printed = {"inputs": ["1\n"], "outputs": ["1\n"]}
    assert score("x: List[int] = []\nprint(1)", printed) == (0.0, 0.0)  # a program that is run alone must import


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("np.float64(1.5)", 1.5),
        ("[np.int64(1), (np.float32(1.5),)]", [1, [1.5]]),
        ("np.array([[1, 2]])", [[1, 2]]),
        ("{np.int64(1): np.bool_(True)}", {"1": True}),
        ("deque([1])", [1]),
        ("Decimal('0.5')", 0.5),
    ],
)
def test_values_of_numpy_and_collections_are_returned_as_json(returned: str, expected: Any) -> None:
    head = "from collections import deque\nfrom decimal import Decimal\n" + "import numpy as np\n" * ("np." in returned)
    truth = {"fn_name": "f", "inputs": [[]], "outputs": [expected]}
    assert score(f"{head}def f(): return {returned}", truth, memory_limit_gb=4.0) == (1.0, 1.0)


LIBRARY = (
    "import datetime\nfrom collections import Counter, deque\nfrom dataclasses import dataclass\n"
    "from decimal import Decimal\nfrom enum import Enum\nfrom fractions import Fraction\n"
    "class Color(Enum):\n    RED = 1\n    BLUE = 2\n"
    "@dataclass\nclass Point:\n    x: int\n    y: int\n"
)


@pytest.mark.parametrize(
    ("returned", "statement"),
    [
        ("Fraction(1, 2)", "assert f() == Fraction(1, 2) and f() < 1 and f() * 2 == 1"),
        ("Decimal('0.10')", "assert f() == Decimal('0.1')"),
        ("datetime.date(2020, 1, 2)", "assert f() == datetime.date(2020, 1, 2)"),
        ("datetime.datetime(2020, 1, 2, 3)", "assert f() == datetime.datetime(2020, 1, 2, 3)"),
        ("datetime.timedelta(hours=30)", "assert f() == datetime.timedelta(days=1, hours=6)"),
        ("datetime.time(3, 4)", "assert f() == datetime.time(3, 4)"),
        ("Color.RED", "assert f() == Color.RED and f() is not None"),
        ("Point(1, [2])", "assert f() == Point(1, [2])"),
        ("[Point(1, 2)]", "assert f() == [Point(1, 2)]"),
        ("deque([1, 2])", "assert f() == deque([1, 2]) and len(f()) == 2"),
        ("Counter('aab')", "assert f() == Counter({'a': 2, 'b': 1}) and f() == {'a': 2, 'b': 1}"),
        ("{'a': 1}.keys()", "assert f() == {'a'}"),
        ("{'a': 1}.values()", "assert list(f()) == [1]"),
        ("2**20000", "assert f() == 2**20000 and len(str(f())) == 6021"),
        ("10**5000 - 1", f"assert f() == {'9' * 5000}"),
    ],
)
def test_asserts_compare_values_of_the_standard_library(returned: str, statement: str) -> None:
    assert score(f"{LIBRARY}def f(): return {returned}", {"asserts": [statement]}) == (1.0, 1.0)
    wrong = {"Color.RED": "Color.BLUE", "Point(1, [2])": "Point(2, [2])"}.get(returned, "None")
    assert score(f"{LIBRARY}def f(): return {wrong}", {"asserts": [statement]}) == (0.0, 0.0)


def test_a_program_that_replaces_a_class_of_the_standard_library_gains_nothing() -> None:
    cheat = "class Fraction:\n    def __new__(cls, *_): return 0\ndate = deque = Fraction\ndef f(): return 0"
    truth = {"asserts": ["assert f() == Fraction(1, 2)", "assert f() == date(2020, 1, 1)", "assert f() == deque([1])"]}
    assert score(cheat, truth, continuous=True) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("returned", "statement"),
    [
        ("Decimal('1e99999999')", "assert int(f()) == 1"),
        ("10**200000", "assert f() == 1"),
        ("'9' * 10**6", "assert f() == 1"),
    ],
)
def test_an_enormous_number_costs_the_scorer_no_time(returned: str, statement: str) -> None:
    before = time.process_time()
    program = f"from decimal import Decimal\ndef f(): return {returned}"
    assert score(program, {"asserts": [statement]}, timeout=2.0)[0] == 0.0
    assert time.process_time() - before < 3.0


def test_integers_of_5000_digits_are_printed_and_returned() -> None:
    number = "9" * 5000
    assert score("print(10**5000 - 1)", {"inputs": [""], "outputs": [number]}) == (1.0, 1.0)
    truth = f'{{"fn_name": "f", "inputs": [[1]], "outputs": [{number}]}}'
    assert score("def f(n): return 10**5000 - n", truth) == (1.0, 1.0)
    assert score("def f(n): return 10**5000 + n", truth) == (0.0, 0.0)


def test_an_expected_output_may_be_longer_than_the_limit() -> None:
    truth = {"inputs": [""], "outputs": ["12345678 " * 300_000]}
    assert score("print('12345678 ' * 300_000)", truth) == (1.0, 1.0)
    assert score("print('12345678 ' * 900_000)", truth) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("1. Do this:\n   ```python\n   if 1:\n       a\n\n   b\n   ```\n2. Done", "if 1:\n    a\n\nb\n"),
        ("- ```python\n  a\n  ```", "a\n"),
        ("\t```python\n\ta\n\t```", "a\n"),
        ("> ```python\n> a\n>\n> b\n> ```", "a\n\nb\n"),
        ("~~~python\na\n~~~", "a\n"),
        ("~~~python\n'```'\n~~~", "'```'\n"),
        ("about ~~~5\n```python\na\n```", "a\n"),
    ],
)
def test_a_block_in_a_list_or_a_quotation_is_read(response: str, program: str) -> None:
    assert last_block(response) == program


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("0.012346", "0.012345679", True),
        ("0.012345", "0.012345679", False),
        ("0.012345679", "0.012346", True),
        ("0.01235", "0.012345679", False),  # five decimals
        ("-0.012346", "0.012345679", False),
        ("0.000000", "0.0000000013", True),
        ("1.5e-3", "0.0015", True),
        ("nan", "1.0", False),
    ],
)
def test_a_printed_number_may_be_rounded_to_six_decimals(printed: str, expected: str, same: bool) -> None:
    assert same_text(printed, expected) is same
