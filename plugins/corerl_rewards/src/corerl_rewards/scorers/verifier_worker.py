"""The process that runs math-verify: one request per line on stdin, one reply per line on stdout.

Request: ``{"truth": LaTeX, "answer": LaTeX, "timeout": seconds of processor time}``; reply:
``{"equal": bool, "seconds": processor time}`` or ``{"error": text}``.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

MEMORY = 4 << 30
"""bytes of address space; a comparison that needs more fails instead of filling the machine"""


def main() -> None:
    """Answer requests until stdin ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # prints of a library must not be read as replies
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the alarm ends this process, even inside one long C call
    equal: Callable[[str, str], bool] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any]
        try:
            equal = equal or load()
            signal.setitimer(signal.ITIMER_PROF, request["timeout"])
            start = time.process_time()
            reply = {"equal": equal(request["truth"], request["answer"]), "seconds": time.process_time() - start}
        except Exception as error:
            reply = {"error": f"math-verify: {type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def load() -> Callable[[str, str], bool]:
    """Import math-verify; returns the comparison of two LaTeX answers."""
    from math_verify import LatexExtractionConfig, parse

    from corerl_rewards.scorers import exact_grader

    config = [LatexExtractionConfig(boxed_match_priority=0)]
    verify = exact_grader.load().verify

    def expressions(latex: str) -> Any:
        boxed = f"\\boxed{{{latex}}}"
        found = parse(boxed, config, fallback_mode="no_fallback", parsing_timeout=None)
        return list(map(exact_grader.with_imaginary_unit, found))

    def equal(truth: str, answer: str) -> bool:
        expected = expressions(truth)
        return bool(expected) and bool(verify(expected, expressions(answer), timeout_seconds=None))

    return equal


if __name__ == "__main__":
    main()
