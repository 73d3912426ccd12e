"""One Ray cluster for all tests of a process, with more CPUs on paper than the machine has."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def cluster():
    import ray

    ray.init(
        "local",
        num_cpus=10,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=2**28,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def groups(cluster, tmp_path_factory):
    """Two actor workers and two rollout workers, for tests that leave them well."""
    from ray_toys import ENGINE, TOY, Engine, Toy

    from corerl.contracts.config import RuntimeConfig
    from corerl_ray.options import RayOptions
    from corerl_ray.runtime import RayRuntime

    runtime = RayRuntime(RuntimeConfig(name="ray"), RayOptions(workers=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORERL_TOY", "carried")
        patch.setenv("CORERL_READ", str(tmp_path_factory.mktemp("weights") / "read"))
        yield runtime.spawn(TOY, Toy), runtime.spawn(ENGINE, Engine)
    runtime.close()


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
