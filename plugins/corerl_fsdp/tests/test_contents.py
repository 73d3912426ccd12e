"""Parts of checkpoints: chosen ones are loaded, and one that is missing is an error before the model."""

import dataclasses
import os

import pytest
import torch
from test_single_device import batch, strategy

from corerl.checkpoint import manifest
from corerl.errors import ConfigError
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_torch import contents
from corerl_torch.supervised import SupervisedObjective

EVERY = os.environ.get("CORERL_EVERY_COMBINATION") == "1"


@pytest.fixture
def saved(model_dirs, tmp_path):
    """A trained model, and a checkpoint of it."""
    one = strategy(model_dirs["qwen2", True])
    for seed in (0, 1, 2):
        one.update(batch(seed), SupervisedObjective())
    folder = tmp_path / "global_step_3"
    (folder / "actor").mkdir(parents=True)
    one.save(folder / "actor")()
    manifest.write(folder)
    return one, folder


def of(spec, **options):
    return SingleDeviceStrategy(dataclasses.replace(spec, seed=5), TorchOptions(**options))


def held(one):
    """Digest of each part: weights, moments, steps of the schedule."""
    moments = [float(state["exp_avg"].sum()) for state in one.optimizer.state.values()]
    return [weights(one), moments, one.schedule.last_epoch]


def weights(one):
    return float(sum(each.sum() for _, each in one.weights()))


@pytest.mark.parametrize("chosen", [["model"], ["optimizer"], ["extra"], ["model", "extra"], ["model", "optimizer"]])
def test_the_chosen_parts_are_loaded_and_the_others_are_new(saved, chosen):
    trained, folder = saved
    for options in ({}, {"initial_checkpoint": str(folder)}):
        loaded = of(trained.spec, load_contents=chosen, **options)
        if not options:
            loaded.load(folder / "actor")
        new, old = held(of(trained.spec)), held(trained)
        expected = [old[at] if name in chosen else new[at] for at, name in enumerate(("model", "optimizer", "extra"))]
        assert held(loaded) == expected and new[0] != old[0] and new[1] == [] != old[1]


def test_an_initial_checkpoint_gives_the_model_and_a_resumed_run_goes_on_with_all(saved, tmp_path):
    trained, folder = saved
    begun = of(trained.spec, initial_checkpoint=str(folder))
    assert held(begun) == [held(trained)[0], [], 0]
    reference = SingleDeviceStrategy(dataclasses.replace(begun.spec, optim=None), begun.options)
    assert weights(reference) == weights(of(trained.spec)) != weights(begun)
    for one in (begun, trained):
        one.update(batch(3), SupervisedObjective())
    own = tmp_path / "own"
    own.mkdir()
    begun.save(own)()
    again = of(trained.spec, initial_checkpoint=str(folder), load_contents=["model"])
    again.load(own)
    assert held(again) == held(begun) != held(trained)


def test_what_a_checkpoint_lacks_is_an_error_before_the_model(saved, tmp_path, capsys):
    trained, folder = saved
    contents.check_resumed("actor.strategy", TorchOptions(), folder / "actor")
    assert capsys.readouterr().err == ""
    contents.check_resumed("actor.strategy", TorchOptions(load_contents=["model"]), folder / "actor")
    assert "actor: optimizer and extra not loaded (actor.strategy)" in capsys.readouterr().err
    SingleDeviceStrategy(trained.spec, TorchOptions(save_optimizer=False)).save(folder / "actor")()
    for options in (TorchOptions(), TorchOptions(load_contents=["optimizer"])):
        with pytest.raises(ConfigError, match=r"has no optimizer \(.*save_optimizer=false\); it has model, extra"):
            contents.check_resumed("actor.strategy", options, folder / "actor")
    with pytest.raises(ConfigError, match="critic has no model that strategy torch or fsdp wrote"):
        contents.check_resumed("critic.strategy", TorchOptions(), folder / "critic")
    (folder / "actor" / "weights.safetensors").write_bytes(b"")
    wrong = TorchOptions(initial_checkpoint=str(folder))
    with pytest.raises(ConfigError, match=r"initial_checkpoint: .*global_step_3 is damaged"):
        contents.check_initial("actor.strategy", wrong, "actor")
    run = tmp_path / "checkpoints"
    run.mkdir()
    folder.rename(run / "global_step_3")
    with pytest.raises(ConfigError, match=r"no checkpoint .*the newest of this run is .*global_step_3"):
        contents.check_options("actor.strategy", TorchOptions(initial_checkpoint=str(tmp_path)))
    with pytest.raises(ConfigError, match="load_contents: is empty"):
        contents.check_options("actor.strategy", TorchOptions(load_contents=[]))


@pytest.mark.xdist_group("ranks")
def test_ranks_load_the_chosen_parts(worlds, model_dirs, tmp_path):
    """Two ranks that take the model alone begin like an untrained optimizer, whichever way they take it."""
    job = {"kind": "train", "model": model_dirs["qwen2", True], "cut": {"max_tokens": 30}, "seeds": [1]}
    folder = tmp_path / "global_step_1"
    (folder / "actor").mkdir(parents=True)
    worlds[2].run(**{**job, "seeds": [0]}, fsdp={}, save=str(folder / "actor"))
    contents.require("actor.strategy", folder / "actor", ["model", "optimizer", "extra"], "torch or fsdp")
    options = [{"load_contents": ["model"]}, *([{}] if EVERY else [])]
    model, *everything = [worlds[2].run(**job, fsdp=each, load=str(folder / "actor"))[0] for each in options]
    begun = worlds[2].run(**job, fsdp={"initial_checkpoint": str(folder)})[0]
    for name, weight in model["weights"].items():
        assert torch.equal(weight, begun["weights"][name]), name
    for other in everything:
        assert any((each - other["weights"][name]).abs().max() > 1e-4 for name, each in model["weights"].items())
