"""A cluster of two nodes on one machine, each with four CPUs and GPUs on paper; prints what was seen as JSON."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import ray
from ray.cluster_utils import Cluster
from ray_toys import ENGINE, TOY, Engine, Generation, Toy, each, request, until

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.experience import collate
from corerl.contracts.runtimes import Pool, Role
from corerl.errors import CoreRLError
from corerl_ray import calls, ends
from corerl_ray.launch import launch
from corerl_ray.options import RayOptions

PAIR = Role("ref", "rollout.name", "pair", distributed=True, gpus=2)
OWN = Role("rollout", "rollout.name", "engine", distributed=True, gpus=2, pool=Pool(1, 4))


def error_of(call, *args):
    try:
        call(*args)
    except CoreRLError as error:
        return str(error)
    return ""


def main():
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 4})
    options = {"address": cluster.address}
    seen = {}

    def started(options, **config):
        return launch(RuntimeConfig(name="ray", **config), options=options)

    # two pools without GPUs, each on both nodes, one of which joins meanwhile; an idle worker is killed there
    ray.init(address=cluster.address, logging_level="ERROR")
    with ThreadPoolExecutor() as pool:
        two = RayOptions(workers=2, rollout_workers=2, weights_transport="broadcast", **options)
        starting = pool.submit(started, two, nnodes=2)
        time.sleep(2)
        seen["waited"] = not starting.done()
        other = cluster.add_node(num_cpus=4, num_gpus=4)
        runtime = starting.result()
    runtime.reserve([TOY, ENGINE])
    group, sink = runtime.spawn(TOY, Toy), runtime.spawn(ENGINE, Engine)
    seen["nodes"] = [len({member.facts.node for member in one.members}) for one in (group, sink)]
    batch = collate([[row] for row in range(5)], [[7] * 3] * 5, [0] * 5)
    seen["values"] = group.forward(batch, ["values"]).values[:, 0].tolist()
    runtime.send_weights(group, sink, 4, verify=True)
    seen["weights"] = [[version, len(weights)] for version, weights in each(sink, "received")]
    quick = calls.LOST_WAIT, calls.LOG_WAIT
    ends.LOST_WAIT = calls.LOST_WAIT = calls.LOG_WAIT = (
        120.0  # a loaded machine takes long to say how it died, and to read its log
    )
    away = max(group.members, key=lambda member: member.facts.node != runtime.waiter.node)
    began = time.monotonic()
    away.host.call.remote("fail", {}, away.rank, "kill")  # nobody waits for this call
    stream = Generation(sink, [request(number, seconds=600.0) for number in range(100)])
    seen["death"], seen["seconds"] = error_of(list, stream), time.monotonic() - began
    calls.LOST_WAIT, calls.LOG_WAIT = quick
    ends.LOST_WAIT = calls.LOST_WAIT
    runtime.close()
    ray.shutdown()

    options["connect_timeout"] = 2

    def refused(role, **config):
        runtime = started(RayOptions(**options), **config)
        try:
            return error_of(runtime.reserve, [TOY, role])
        finally:
            runtime.close()

    seen["too_many"] = error_of(lambda: started(RayOptions(**options), nnodes=2, n_gpus_per_node=5))
    seen["uneven"] = error_of(lambda: started(RayOptions(workers=3, **options), nnodes=2))
    seen["together"] = refused(OWN, nnodes=2, n_gpus_per_node=1)
    seen["undivided"] = refused(PAIR, nnodes=1, n_gpus_per_node=3)

    # GPUs: a replica of two in shared places, two replicas of two in a pool of their own
    runtime = started(RayOptions(**options), nnodes=1, n_gpus_per_node=2)
    runtime.reserve([TOY, PAIR, OWN])
    group, pair, own = runtime.spawn(TOY, Toy), runtime.spawn(PAIR, Engine), runtime.spawn(OWN, Engine)
    seen["local_ranks"] = [one["LOCAL_RANK"] for one in each(group, "environment")]
    seen["devices"] = [one["CUDA_VISIBLE_DEVICES"] for one in each(group, "environment")]
    seen["pair"] = [one["CUDA_VISIBLE_DEVICES"] for one in each(pair, "environment")]
    seen["own"] = [one["CUDA_VISIBLE_DEVICES"] for one in each(own, "environment")]
    seen["pools"] = [sorted({member.facts.node for member in one.members}) for one in (group, pair, own)]

    # the machine of one of the pools is lost
    waiting = group.sleep.submit(600)
    began = time.monotonic()
    cluster.remove_node(other, allow_graceful=False)
    seen["lost"], seen["lost_seconds"] = error_of(waiting.result), time.monotonic() - began
    until(lambda: sum(node["Alive"] for node in ray.nodes()) == 1)  # Ray notices it later than the loss of its workers
    runtime.close()
    ray.shutdown()

    # the machine of a rollout worker is lost, and another has room for it
    options["connect_timeout"] = 120
    third = cluster.add_node(num_cpus=3, num_gpus=8)  # the actor on the smaller node, then three CPUs free on each
    runtime = started(RayOptions(rollout_workers=2, weights_transport="object_store", **options))
    runtime.reserve([TOY, ENGINE])
    group, sink = runtime.spawn(TOY, Toy), runtime.spawn(ENGINE, Engine)
    runtime.send_weights(group, sink, 1)
    seen["apart"] = len({member.facts.node for member in sink.members})
    cluster.remove_node(third, allow_graceful=False)
    seen["away"] = error_of(Generation(sink, [request(number, seconds=5.0) for number in range(8)]).result)
    sink.restart()
    runtime.send_weights(group, sink, 2)
    seen["here"] = [member.facts.node == runtime.waiter.node for member in sink.members]
    seen["again"] = Generation(sink, [request("a"), request("b")]).result()
    runtime.close()
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
