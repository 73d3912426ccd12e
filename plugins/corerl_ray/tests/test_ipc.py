"""An actor whose rollout worker has ended goes on."""

from types import SimpleNamespace

import torch

from corerl_ray.transports.ipc import Outbox, send
from corerl_ray.transports.link import Link


def test_an_actor_whose_receiver_has_ended_gathers_the_rest_and_waits_no_longer():
    receiver = [Link.listen("127.0.0.1", 600.0)]
    link = Link.connect("127.0.0.1", receiver[0].port, 600.0)
    gathered = []

    def weights():
        for number in range(6):
            if number == 1:
                receiver.clear()  # with its process a receiver's store ends
            gathered.append(number)
            yield f"w{number}", torch.zeros(8)

    host = SimpleNamespace(worker=SimpleNamespace(weights=weights), transport=Outbox(link, torch.device("cpu")))
    send(host, 32, verify=False)
    assert gathered == list(range(6))
    assert host.transport.shared is None  # the memory is given back
