"""A cluster of two nodes on one machine, each with two CPUs and a GPU on paper; prints what was seen as JSON."""

import json

import ray
from ray.cluster_utils import Cluster
from ray_toys import ENGINE, TOY, Engine, Toy

from corerl.batch.experience import collate
from corerl.config.schema import RuntimeConfig
from corerl.errors import CoreRLError
from corerl_ray.launch import launch
from corerl_ray.options import RayOptions


def error_of(call, *args):
    try:
        call(*args)
    except CoreRLError as error:
        return str(error)
    return ""


def main():
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1})
    cluster.add_node(num_cpus=2, num_gpus=1)
    options = {"address": cluster.address}
    seen = {}
    runtime = launch(RuntimeConfig(name="ray", nnodes=2), options=RayOptions(workers=2, **options))
    group, sink = runtime.spawn(TOY, Toy), runtime.spawn(ENGINE, Engine)
    seen["nodes"] = len({member.facts.node for member in group.members})
    batch = collate([[row] for row in range(5)], [[7] * 3] * 5, [0] * 5)
    seen["values"] = group.forward(batch, ["values"]).values[:, 0].tolist()
    runtime.send_weights(group, sink, 4)
    seen["weights"] = [[version, len(weights)] for version, weights in sink.received()]
    away = max(group.members, key=lambda member: member.facts.node != runtime.waiter.node)
    seen["death"] = error_of(group.fail, away.rank, "kill")
    runtime.close()

    runtime = launch(RuntimeConfig(name="ray", nnodes=2, n_gpus_per_node=1), options=RayOptions(**options))
    group = runtime.spawn(TOY, Toy)
    seen["local_ranks"] = [one["LOCAL_RANK"] for one in group.environment()]
    seen["devices"] = [one["CUDA_VISIBLE_DEVICES"] for one in group.environment()]
    runtime.close()
    too_many = RuntimeConfig(name="ray", nnodes=2, n_gpus_per_node=2)
    seen["too_many"] = error_of(lambda: launch(too_many, options=RayOptions(**options)))
    seen["uneven"] = error_of(lambda: launch(RuntimeConfig(nnodes=2), options=RayOptions(workers=3, **options)))
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
