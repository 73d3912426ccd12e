"""A teacher that is the average of the policy's past weights."""

import json

import pytest
import torch
from teaching import Class, rollouts, write_model
from test_full import dense, expect_same
from test_training import material, train  # noqa: F401
from transformers import AutoModelForCausalLM

from corerl.telemetry.metrics_log import read_metrics
from corerl_distill.options import DistillOptions, TeacherOptions

SOURCES = ["sums", "code", "sums", "code"]
TEACHERS = {"past": TeacherOptions(weights="ema")}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("form", ["full", "top_k"])
def test_the_teacher_has_averaged_body_and_averaged_output_layer(tmp_path, form, tied):
    """Body and output layer of policy and average differ by more than the test's error."""
    options = DistillOptions(teachers=TEACHERS, form=form, top_k=259, divergence="jsd", chunk_size=3)
    taught, given = Class(write_model(tmp_path / "student", tied=tied), options, ema_decay=0.5), rollouts(SOURCES)
    with torch.no_grad():
        for number, (name, parameter) in enumerate(taught.student.model.named_parameters()):
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
            assert not torch.equal(parameter, taught.student.average.values[name])
    for name, values in (("now", None), ("past", taught.student.average.values)):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "student")
        model.load_state_dict(values or dict(taught.student.model.named_parameters()), strict=not tied)
        model.save_pretrained(tmp_path / name)
    batch = taught.batch(given)
    true = dense(tmp_path / "now", [tmp_path / "past"] * 4, given, batch.response_mask, "jsd", beta=0.5, temperature=1)
    assert true[0] > 1e-4
    expect_same(taught.loss_and_gradient(batch), true)


@pytest.mark.parametrize("strategy", ["torch", "fsdp"])
def test_a_resumed_run_goes_on_bit_for_bit(material, tmp_path, strategy):  # noqa: F811
    teachers = {"past": {"weights": "ema", "context": "{prompt} It is {ground_truth}."}}
    overrides = [
        f"actor.policy_loss={json.dumps({'name': 'distill', 'teachers': teachers})}",
        f"actor.strategy={{name: {strategy}, ema_decay: 0.8}}",
        "trainer.total_training_steps=4",
        "trainer.save_freq=2",
    ]
    straight = train(material, tmp_path / "a", *overrides)
    stopped = train(material, tmp_path / "b", *overrides, "trainer.total_training_steps=2")
    resumed = train(
        material, tmp_path / "b", *overrides, f"trainer.resume_mode={stopped}", "trainer.resume_with_changes=true"
    )
    found, again = (
        [record["actor/divergence"] for record in read_metrics(folder / "metrics.jsonl")]
        for folder in (straight, resumed)
    )
    assert len(found) == 4 and found == again
    files = [sorted((folder / "checkpoints/global_step_4/actor").glob("*.*s*")) for folder in (straight, resumed)]
    assert [each.name for each in files[0]] == [each.name for each in files[1]]
    for one, other in zip(*files, strict=True):
        if one.suffix in (".safetensors", ".distcp"):
            assert one.read_bytes() == other.read_bytes(), one.name
