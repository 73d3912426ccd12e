"""One command of ``corerl``, as it would run in a process of its own."""

import contextlib
import io
import re

from corerl.cli.main import run

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Broken(Exception):
    """A command ended as none may."""


def corerl(*arguments: str) -> int:
    """Run it; its exit code.

    Raises:
        Broken: it printed a traceback, called itself a bug, printed control characters, or had another exit code than
            0, 1 and 2.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    said = out.getvalue() + err.getvalue()
    if "Traceback" in said or "this is a bug" in said:
        raise Broken(said[-3000:])
    if found := CONTROL.search(said):
        raise Broken(f"printed {found[0]!r} in {said[max(0, found.start() - 200) : found.end()]!r}")
    if code not in (0, 1, 2):
        raise Broken(f"exit code {code}: {said[-2000:]}")
    return code
