"""The names registered by corerl-sandbox."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.scorers import Scorer

PROGRAMS = ("apps", "code_contests", "codecontests", "codeforces", "taco")
"""programs with tests of their output: names of Eurus-2, of verl, and of the set on the hub"""


@hookimpl
def register_scorers(register: "Register[Scorer]") -> None:
    register(
        "code",
        "corerl_sandbox.scorer.code:code",
        options="corerl_sandbox.options:CodeOptions",
        summary="1 if the response's Python program passes the tests, run in a sandbox",
        data_sources=PROGRAMS,
    )
