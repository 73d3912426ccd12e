from typing import Any

from corerl_testing import conformance_tests
from plugins.corerl_rewards.tests.http_server import Server


def by_length(responses: list[str], *_: Any) -> list[float]:
    return [-float(len(response)) for response in responses]


def scored(body: Any, _: int) -> tuple[int, Any]:
    return 200, {"results": by_length([sample["response"] for sample in body["samples"]])}


def graded(*_: Any) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"content": "Score: 5"}}]}


REMOTE, JUDGE = Server(scored).__enter__(), Server(graded).__enter__()  # daemons, for as long as the tests run

test_conformance = conformance_tests(
    "corerl-rewards",
    options={
        "batch": {"function": f"{__file__}:by_length"},
        "judge": {"base_url": JUDGE.url, "model": "judge"},
        "remote": {"url": REMOTE.url},
        "combined": {
            "components": {
                "accuracy": {"scorer": "math"},
                "brevity": {"scorer": {"name": "length", "longest": 500}, "weight": 0.1},
            }
        },
    },
)
