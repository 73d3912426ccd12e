import copy
from pathlib import Path

import pytest
import torch
from teaching import Class, load_bytes, rollouts, write_model
from transformers import AutoModelForCausalLM

from corerl.errors import RunError
from corerl_distill.options import DistillOptions, TeacherOptions

SOURCES = ["sums", "sums", "code", "sums", "code"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A student and teachers of other widths; that of ``padded`` has more logits than tokens."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "student": write_model(folder / "student"),
        "teacher": write_model(folder / "teacher", hidden=48, seed=1),
        "tied": write_model(folder / "tied", hidden=16, seed=2, tied=True),
        "padded": write_model(folder / "padded", hidden=40, seed=3, vocabulary=264),
    }


def dense(student, teachers, given, mask, kind, beta, temperature, prompts=None):
    """Mean divergence of the trained tokens, with whole logits, by autograd in float64; and its gradient.

    Args:
        teachers: of each row, its path.
    """
    model = AutoModelForCausalLM.from_pretrained(student, attn_implementation="eager").double()
    total, count = 0.0, 0
    for row, (prompt, completion) in enumerate(zip(given.prompts, given.completions, strict=True)):
        own = prompt.token_ids if prompts is None else prompts[row]
        teacher = AutoModelForCausalLM.from_pretrained(teachers[row], attn_implementation="eager").double()
        p = distribution(model, prompt.token_ids, completion.token_ids, temperature)
        with torch.no_grad():
            q = distribution(teacher, own, completion.token_ids, temperature)
        size = min(p.shape[1], q.shape[1])
        p, q = torch.log_softmax(p[:, :size], dim=-1), torch.log_softmax(q[:, :size], dim=-1)
        m = (beta * q.exp() + (1 - beta) * p.exp()).log()
        each = {
            "reverse_kl": p.exp() * (p - q),
            "forward_kl": q.exp() * (q - p),
            "jsd": beta * q.exp() * (q - m) + (1 - beta) * p.exp() * (p - m),
        }[kind].sum(dim=-1)
        trained = mask[row, : len(each)]
        total, count = total + each[trained].sum(), count + int(trained.sum())
    loss = total / count
    loss.backward()
    return float(loss.detach()), {name: each.grad for name, each in model.named_parameters()}


def distribution(model, prompt, response, temperature):
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, dim=-1)


def expect_same(found, true):
    loss, gradient = found
    true_loss, true_gradient = true
    assert loss == pytest.approx(true_loss, rel=1e-6, abs=1e-6)
    whole = sum(each.norm() ** 2 for each in true_gradient.values()).sqrt()
    for name, each in true_gradient.items():
        assert (gradient[name] - each).norm() <= 1e-6 * whole, name


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
@pytest.mark.parametrize("packed", [False, True])
def test_full_equals_the_dense_reference(folders, kind, packed):
    """Chunks of 3 tokens, micro-batches of 2 rows, a masked token."""
    options = DistillOptions(teacher=str(folders["teacher"]), divergence=kind, beta=0.3, chunk_size=3)
    taught = Class(folders["student"], options, temperature=0.8, use_remove_padding=packed)
    given = rollouts(SOURCES)
    batch = taught.batch(given, masked=(2, 1))
    true = dense(
        folders["student"], [folders["teacher"]] * 5, given, batch.response_mask, kind, beta=0.3, temperature=0.8
    )
    expect_same(taught.loss_and_gradient(batch), true)


@pytest.mark.parametrize("name", ["tied", "padded"])
def test_heads_tied_to_the_embedding_and_of_another_vocabulary_size(folders, name):
    """Logits beyond the smaller vocabulary are left out."""
    options = DistillOptions(teacher=str(folders[name]), divergence="forward_kl", chunk_size=4)
    taught, given = Class(folders["student"], options), rollouts(SOURCES)
    batch = taught.batch(given)
    true = dense(folders["student"], [folders[name]] * 5, given, batch.response_mask, "forward_kl", 0.5, 1.0)
    expect_same(taught.loss_and_gradient(batch), true)


def test_several_teachers_by_data_source(folders):
    teachers = {
        "math": TeacherOptions(path=str(folders["teacher"]), data_sources=["su*"]),
        "rest": TeacherOptions(path=str(folders["tied"]), data_sources=["*"]),
    }
    taught, given = Class(folders["student"], DistillOptions(teachers=teachers, chunk_size=5)), rollouts(SOURCES)
    batch = taught.batch(given)
    paths = [folders["teacher" if source == "sums" else "tied"] for source in SOURCES]
    expect_same(
        taught.loss_and_gradient(batch),
        dense(folders["student"], paths, given, batch.response_mask, "reverse_kl", 0.5, 1.0),
    )


def test_a_data_source_without_a_teacher_is_named(folders):
    teachers = {"math": TeacherOptions(path=str(folders["teacher"]), data_sources=["su*"])}
    taught = Class(folders["student"], DistillOptions(teachers=teachers))
    with pytest.raises(RunError, match="data source 'code'"):
        taught.batch(rollouts(SOURCES))


@pytest.mark.parametrize("kind", ["reverse_kl", "jsd"])
def test_top_k_of_the_whole_vocabulary_is_full(folders, kind):
    given, found = rollouts(SOURCES), {}
    for form in ("full", "top_k"):
        options = DistillOptions(teacher=str(folders["teacher"]), divergence=kind, form=form, top_k=259, chunk_size=4)
        taught = Class(folders["student"], options)
        found[form] = taught.loss_and_gradient(taught.batch(given))
    assert found["top_k"][0] == pytest.approx(found["full"][0], rel=1e-6)
    for name, each in found["full"][1].items():
        torch.testing.assert_close(found["top_k"][1][name], each, rtol=1e-4, atol=1e-6)


def test_top_k_tends_to_full_from_below(folders):
    given, values = rollouts(SOURCES), []
    for k in (1, 8, 64, 259):
        taught = Class(folders["student"], DistillOptions(teacher=str(folders["teacher"]), form="top_k", top_k=k))
        values.append(taught.loss_and_gradient(taught.batch(given))[0])
    full = Class(folders["student"], DistillOptions(teacher=str(folders["teacher"])))
    assert values == sorted(values) and values[0] < 0.9 * values[-1]
    assert values[-1] == pytest.approx(full.loss_and_gradient(full.batch(given))[0], rel=1e-6)


def test_the_sampled_form_has_the_teachers_log_probs(folders):
    taught, given = (
        Class(folders["student"], DistillOptions(teacher=str(folders["teacher"]), form="sampled")),
        rollouts(SOURCES),
    )
    batch = taught.batch(given)
    teacher = AutoModelForCausalLM.from_pretrained(folders["teacher"], attn_implementation="eager").double()
    true = []
    for prompt, completion in zip(given.prompts, given.completions, strict=True):
        with torch.no_grad():
            rows = distribution(teacher, prompt.token_ids, completion.token_ids, 1.0)
        true += rows.gather(1, torch.tensor(completion.token_ids)[:, None]).squeeze(1).tolist()
    column = batch.columns["teacher/teacher/log_probs"]
    torch.testing.assert_close(column.values.double(), torch.tensor(true, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    assert int(column.counts.sum()) == len(true)
    loss, gradient = taught.loss_and_gradient(batch)
    expected = float((batch.old_log_probs[batch.response_mask].double() - torch.tensor(true)).mean())
    assert loss == pytest.approx(expected, rel=1e-5)
    assert any(each.any() for each in gradient.values())


def test_the_initial_model_with_the_answer_in_its_prompt(folders):
    """OPSD: prompt tokens of the teacher are others, response tokens the same."""
    teachers = {"self": TeacherOptions(context="{prompt} It is {ground_truth}; {extra_info[hint]}.")}
    taught, given = (
        Class(folders["student"], DistillOptions(teachers=teachers, chunk_size=4)),
        rollouts(SOURCES, extra="h"),
    )
    batch = taught.batch(given)
    prompts = [
        load_bytes(f"<|im_start|>user\n{row}? It is answer {row}; h.<|im_end|>\n<|im_start|>assistant\n")
        for row in range(5)
    ]
    true = dense(
        folders["student"], [folders["student"]] * 5, given, batch.response_mask, "reverse_kl", 0.5, 1.0, prompts
    )
    assert true[0] > 1e-4
    expect_same(taught.loss_and_gradient(batch), true)


def test_the_policy_itself_is_a_teacher_by_its_present_weights(folders):
    """After a change of the policy, full equals top_k of the whole vocabulary, which needs no output layer."""
    teachers = {"self": TeacherOptions(context="{prompt} It is {ground_truth}.", weights="policy")}
    given, found = rollouts(SOURCES), {}
    for form in ("full", "top_k"):
        options = DistillOptions(teachers=copy.deepcopy(teachers), form=form, top_k=259, chunk_size=4)
        taught = Class(folders["student"], options)
        assert taught.teachers._readers["self"]._model is taught.policy
        with torch.no_grad():
            taught.student.model.lm_head.weight.mul_(1.5)
        found[form] = taught.loss_and_gradient(taught.batch(given))[0]
    assert found["full"] == pytest.approx(found["top_k"], rel=1e-5) and found["full"] > 1e-4


def test_the_head_reads_no_body(folders):
    options = DistillOptions(teacher=str(folders["teacher"]))
    head = Class(folders["student"], options).objective.of_logits._heads["teacher"]
    stored = {name for name, each in head._model.named_parameters() if not each.is_meta}
    assert stored == {"lm_head.weight"}


def test_a_sharded_or_dummy_teacher_is_read_by_transformers(folders, tmp_path):
    """Files without the head's name."""
    from safetensors.torch import load_file, save_file

    from corerl_distill.head import TeacherHead

    config = Class(folders["student"], DistillOptions(teacher=str(folders["teacher"]))).config
    plain = TeacherHead(TeacherOptions(path=str(folders["teacher"])), config)
    other = tmp_path / "other"
    other.mkdir()
    for file in Path(folders["teacher"]).iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    weights = load_file(other / "model.safetensors")
    torch.save(weights, other / "pytorch_model.bin")
    (other / "model.safetensors").unlink()
    assert save_file
    hidden = torch.randn(3, 48)
    torch.testing.assert_close(TeacherHead(TeacherOptions(path=str(other)), config)(hidden), plain(hidden))
