"""What ranks of a test do: requests of two clients, alone and in turn, and their files."""

from dataclasses import replace
from pathlib import Path

from tinker_toys import loss_request, spec

from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_tinker.training.checkpoints import About, Checkpoints
from corerl_tinker.training.states import Adapter
from corerl_tinker.training.trainer import Trainer
from corerl_torch.stepping import AdamStep

STEP = AdamStep(1e-2, (0.9, 0.95), 1e-3, weight_decay=0.01, max_norm=1.0)
CLIENTS = (Adapter(2, 32, 5), Adapter(4, 32, 6, train_mlp=False))
ADDRESS = "tinker://s:train:0/weights/a"


def made(job):
    given = spec(job.get("rank", 4), dtype="fp32")
    if "model" in job:
        given = replace(given, model=replace(given.model, path=job["model"], load_format="dummy"))
    if "layout" in job:
        from corerl_megatron.options import MegatronOptions
        from corerl_megatron.strategy import MegatronStrategy

        strategy = MegatronStrategy(given, MegatronOptions(**job["layout"]))
    else:
        strategy = (SingleDeviceStrategy if job.get("single") else FsdpStrategy)(given)
    return Trainer(strategy, given, "x", sends_adapters=bool(job.get("adapters")))


def client(trainer, number):
    """A turn at a time; at last (numbers, the sent weights)."""
    seen, state = [], trainer.new_state(CLIENTS[number])
    for step in range(2):
        for backward in (True, False):
            result = trainer.forward_backward(state, loss_request(seed=10 * number + step, backward=backward))
            seen += [result.loss, *(number for each in result.log_probs for number in each.tolist())]
            yield None
        seen.append(trainer.optim_step(state, STEP))
        yield None
    trainer.hold(state)
    yield seen, {name: each.clone() for name, each in trainer.weights()}, state


def last(turns):
    return next(found for found in turns if found is not None)


def run(job):
    try:
        return globals()[job["kind"]](job)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def alone(job):
    return last(client(made(job), job["client"]))[:2]


def together(job):
    trainer = made(job)
    clients, found = [client(trainer, number) for number in range(2)], {}
    while len(found) < 2:
        for number, each in enumerate(clients):
            if number not in found and (seen := next(each)) is not None:
                found[number] = seen[:2]
    return [found[number] for number in range(2)]


def continued(job):
    """A step after a state was read from files; without ``load``, the files are written first."""
    trainer, store = made(job), Checkpoints(Path(job["folder"]))
    about = About("m", "", vars(CLIENTS[0]) if job.get("rank", 4) else None, 0.0)
    if not job.get("load"):
        state = last(client(trainer, 0))[2]
        trainer.save(store, ADDRESS, about, state, optimizer=True, overwrite=False)
    state = trainer.load(store, ADDRESS, about, optimizer=True)
    trainer.forward_backward(state, loss_request(seed=99))
    trainer.optim_step(state, STEP)
    trainer.hold(state)
    return {name: each.clone() for name, each in trainer.weights()}
