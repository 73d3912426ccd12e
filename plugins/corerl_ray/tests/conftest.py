"""One Ray cluster for all tests of the group "ray", with more CPUs on paper than the machine has."""

import contextlib
import sys
from pathlib import Path

import pytest

from ray_clusters import local_cluster

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def cluster(at_the_end_of_the_group):
    """The cluster that the last test of the group ends."""
    import ray

    if not ray.is_initialized():
        at_the_end_of_the_group(local_cluster(10, object_store_memory=2**28).close)


kept = {}
"""the groups of a cluster that runs"""


@pytest.fixture(scope="module")
def groups(cluster, tmp_path_factory, at_the_end_of_the_group):
    """Two actor workers and two rollout workers, for tests that leave them well."""
    from ray_toys import ENGINE, TOY, Engine, Toy

    from corerl.contracts.config import RuntimeConfig
    from corerl_ray.options import RayOptions
    from corerl_ray.runtime import RayRuntime

    if not kept:
        with contextlib.ExitStack() as stack:
            stack.callback(kept.clear)
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setenv("CORERL_TOY", "carried")
            patch.setenv("CORERL_READ", str(tmp_path_factory.mktemp("weights") / "read"))
            runtime = RayRuntime(RuntimeConfig(name="ray"), RayOptions(workers=2))
            stack.callback(runtime.close)
            kept["runtime"] = runtime
            kept["groups"] = runtime.spawn(TOY, Toy), runtime.spawn(ENGINE, Engine)
            at_the_end_of_the_group(stack.pop_all().close)
    return kept["groups"]


@pytest.fixture(scope="module")
def relayed(groups):
    """The actor workers of ``groups``, called by a relay."""
    import dataclasses
    import time

    from corerl_ray.calls import Wait
    from corerl_ray.relay import Relays

    if "relayed" not in kept:
        runtime, group = kept["runtime"], groups[0]
        starting = Wait(runtime.waiter, time.monotonic() + 300, "starting relays")
        kept["relayed"] = dataclasses.replace(group, relays=Relays(runtime.start_relays(group.members, starting)))
    return kept["relayed"]


@pytest.fixture
def start(cluster):
    """Start a runtime with options; it is closed after the test."""
    from corerl.contracts.config import RuntimeConfig
    from corerl_ray.options import RayOptions
    from corerl_ray.runtime import RayRuntime

    runtimes = []

    def started(workers=1, **options):
        runtime = RayRuntime(RuntimeConfig(name="ray"), RayOptions(workers=workers, **options))
        runtimes.append(runtime)
        return runtime

    yield started
    for runtime in runtimes:
        runtime.close()
