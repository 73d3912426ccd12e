"""Saved weights: training goes on bit for bit; addresses, owners and damaged files."""

import time
from dataclasses import asdict

import pytest
import torch
from tinker_toys import loss_request, trainer

from corerl_tinker.errors import UserError
from corerl_tinker.training.checkpoints import TRAINING, About, Checkpoints
from corerl_tinker.training.states import Adapter
from corerl_torch.stepping import AdamStep

STEP = AdamStep(1e-2, (0.9, 0.95), 1e-12)
MODEL = "abc:train:0"
ADAPTER = Adapter(2, 32, 5)


def about(rank, **more):
    return About("base", **{"owner": "", "adapter": asdict(ADAPTER) if rank else None, "created": time.time(), **more})


def train(made, state, seeds):
    for seed in seeds:
        made.forward_backward(state, loss_request(seed=seed))
        made.optim_step(state, STEP)
    return made.snapshot(state).weights


@pytest.mark.parametrize("rank", [4, 0])
def test_training_goes_on_from_a_checkpoint_bit_for_bit(tmp_path, rank):
    store, made = Checkpoints(tmp_path), trainer(rank)
    address = store.address(MODEL, TRAINING, "a")
    state = made.new_state(ADAPTER)
    train(made, state, (0, 1))
    made.save(store, address, about(rank), state, optimizer=True, overwrite=False)
    wanted = train(made, state, (2, 3))
    other = trainer(rank)
    loaded = other.load(store, address, store.about(address, ""), optimizer=True)
    assert all(torch.equal(a, b) for a, b in zip(wanted, train(other, loaded, (2, 3)), strict=True))
    fresh = other.load(store, address, store.about(address, ""), optimizer=False)
    assert not all(torch.equal(a, b) for a, b in zip(wanted, train(other, fresh, (2, 3)), strict=True))


def test_a_name_is_taken_once_unless_it_may_be_overwritten(tmp_path):
    store, made = Checkpoints(tmp_path), trainer()
    address, state = store.address(MODEL, TRAINING, "a"), made.new_state(ADAPTER)
    for overwrite in (False, True):
        made.save(store, address, about(4), state, optimizer=True, overwrite=overwrite)
    with pytest.raises(UserError, match="another name"):
        made.save(store, address, about(4), state, optimizer=True, overwrite=False)
    assert [each[0] for each in store.list(MODEL, "")] == [address]
    store.delete(address, "")
    assert list(store.list(MODEL, "")) == []


@pytest.mark.parametrize(
    "address",
    [
        "tinker://abc:train:0/weights/../../../etc",
        "tinker://abc:train:0/weights/..",
        "tinker://../weights/a",
        "tinker://abc:train:0/other/a",
        "/etc/passwd",
        "tinker://abc:train:0/weights/a/b",
        "tinker://abc:train:0/weights/" + "a" * 200,
    ],
)
def test_no_address_leads_out_of_the_folder(tmp_path, address):
    with pytest.raises(UserError, match="no address of a checkpoint"):
        Checkpoints(tmp_path).about(address, "")


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a b", "é"])
def test_names_are_those_of_files(tmp_path, name):
    with pytest.raises(UserError, match="cannot be named"):
        Checkpoints(tmp_path).address(MODEL, TRAINING, name)


def test_another_owner_and_time_hide_a_checkpoint(tmp_path):
    store, made = Checkpoints(tmp_path), trainer()
    state = made.new_state(ADAPTER)
    for name, given in (("a", about(4, owner="me")), ("b", about(4, expires=time.time() - 1))):
        made.save(store, store.address(MODEL, TRAINING, name), given, state, optimizer=False, overwrite=False)
    assert store.about(store.address(MODEL, TRAINING, "a"), "me").owner == "me"
    for name, owner in (("a", ""), ("b", ""), ("c", "")):
        with pytest.raises(UserError, match="there is no checkpoint"):
            store.about(store.address(MODEL, TRAINING, name), owner)


def test_damaged_and_foreign_files_are_refused(tmp_path):
    store, made = Checkpoints(tmp_path), trainer()
    address = store.address(MODEL, TRAINING, "a")
    made.save(store, address, about(4), made.new_state(ADAPTER), optimizer=False, overwrite=False)
    with pytest.raises(UserError, match=r"has no optimizer\.safetensors"):
        made.load(store, address, store.about(address, ""), optimizer=True)
    with pytest.raises(UserError, match="holds adapters, and this server trains all weights"):
        trainer(0).load(store, address, store.about(address, ""), optimizer=False)
    (store.place(address) / "weights.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(UserError, match="cannot be loaded"):
        made.load(store, address, store.about(address, ""), optimizer=False)
    (store.place(address) / "about.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        store.about(address, "")
