from corerl_testing import conformance_tests

test_conformance = conformance_tests("corerl-distill")
