"""Everything that the core registers by itself keeps its contract."""

from corerl_testing import conformance_tests

test_conformance = conformance_tests("corerl")
