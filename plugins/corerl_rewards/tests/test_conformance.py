from corerl.testing import conformance_tests

test_conformance = conformance_tests(
    "corerl-rewards",
    options={
        "combined": {
            "components": {
                "accuracy": {"scorer": "math"},
                "brevity": {"scorer": {"name": "length", "longest": 500}, "weight": 0.1},
            }
        }
    },
)
