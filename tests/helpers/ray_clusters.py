"""Clusters of Ray in the process of a test."""

from contextlib import ExitStack


def local_cluster(cpus: int, **arguments: int) -> ExitStack:
    """A cluster with so many CPUs on paper; closing the stack ends the cluster.

    Its log monitor, which nobody hears, ends at once: it looks at every log ten times a second.
    """
    import ray
    from ray._private import worker

    ray.init(
        "local",
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        **arguments,  # type: ignore[arg-type]
    )
    worker._global_node.kill_log_monitor()  # type: ignore[union-attr]
    stack = ExitStack()
    stack.callback(ray.shutdown)
    return stack
