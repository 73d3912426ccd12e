from pathlib import Path

from corerl_testing import conformance_tests

TOOL = f"{Path(__file__).parents[3]}/examples/agents/calculator.py:calculator"

test_conformance = conformance_tests("corerl-agents", options={"tools": {"functions": [TOOL]}})
