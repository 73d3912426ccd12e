import subprocess
import sys

import pytest
from teaching import write_model
from test_alignment import byte_level

from corerl.cli.common import load_train_config
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError
from corerl.plugins import Plugins
from corerl_distill.contexts import with_context
from corerl_distill.options import DistillOptions, TeacherOptions
from corerl_testing.tiny_model import CHAT_TEMPLATE, SPECIAL_TOKENS

GIVEN = ["model.path=m", "data.train_files=[t.parquet]"]


def loaded(*overrides):
    return load_train_config(None, [*GIVEN, *overrides])


def test_the_light_half_imports_no_torch():
    modules = "corerl_distill.plugin, corerl_distill.presets, corerl_distill.options, corerl_distill.rules"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_teachers_are_roles_of_the_run_with_their_paths():
    config, parts, plugins = loaded(
        "actor.policy_loss={name: distill, teachers: {a: {path: x}, b: {url: 'http://h', data_sources: [s]}, c: "
        "{context: '{prompt}!'}}, form: sampled}"
    )
    roles = [each for given in plugins.hook.model_roles(config=config, parts=parts) for each in given]
    assert [(each.role.name, each.path) for each in roles] == [("teacher-a", "x"), ("teacher-c", "m")]
    assert {each.role.part for each in roles} == {"torch"}


def test_another_policy_loss_has_no_teachers():
    config, parts, plugins = loaded()
    assert [list(given) for given in plugins.hook.model_roles(config=config, parts=parts)] == [[]]


@pytest.mark.parametrize(
    ("loss", "others", "message"),
    [
        ("{name: distill}", (), "actor.policy_loss.teacher: must be given"),
        ("{name: distill, teacher: x, teachers: {a: {path: y}}}", (), "actor.policy_loss.teacher: names the only"),
        ("{name: distill, teacher: x, form: sampled, divergence: jsd}", (), "divergence: form sampled is an estimate"),
        ("{name: distill, teachers: {a: {}}}", (), "teachers.a: needs path, url"),
        ("{name: distill, teachers: {a: {path: x, url: y}}}", (), "teachers.a: a teacher is one of"),
        ("{name: distill, teachers: {a: {weights: policy}}}", (), "teachers.a.context: must be given"),
        ("{name: distill, teachers: {a: {weights: ema}}}", (), "actor.strategy: must be torch or fsdp with ema_decay"),
        ("{name: distill, teachers: {a: {weights: ema, path: x}}}", (), "teachers.a: a teacher is one of"),
        (
            "{name: distill, teachers: {a: {weights: ema}}}",
            ("actor.strategy={name: torch, ema_decay: 1.5}",),
            "actor.strategy.ema_decay: must be",
        ),
        ("{name: distill, teachers: {a: {url: 'http://h'}}}", (), "teachers.a.url: a server gives log-probs of a few"),
        (
            "{name: distill, form: top_k, teachers: {a: {url: 'http://h'}}}",
            ("rollout.temperature=0.7",),
            "rollout.temperature: must be 1",
        ),
        ("{name: distill, teachers: {a: {pth: x}}}", (), "actor.policy_loss.teachers.a.pth: unknown key"),
        ("{name: distill, teachers: {a: {path: x, timeout: 0}}}", (), "teachers.a.timeout: must be greater than 0"),
        ("{name: distill, teachers: {a: {path: x, data_sources: s}}}", (), "teachers.a.data_sources: must be a list"),
        ("{name: distill, teachers: {a: x}}", (), "actor.policy_loss.teachers.a: must be a mapping"),
        (
            "{name: distill, teachers: {a: {weights: ema}}}",
            ("actor.strategy=megatron",),
            "actor.strategy: must be torch or fsdp with ema_decay",
        ),
    ],
)
def test_a_broken_rule_is_one_line(loss, others, message):
    with pytest.raises(ConfigError) as caught:
        loaded(f"actor.policy_loss={loss}", *others)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["opsd", "sdft"])
def test_presets_are_configs_of_a_teacher_that_is_the_model_itself(name):
    config, parts, _ = loaded(f"preset={name}", "actor.policy_loss.teachers.self.context='{prompt} {ground_truth}'")
    [teacher] = parts.policy_loss.options.named.values()
    assert teacher.path is None and teacher.context == "{prompt} {ground_truth}"
    assert teacher.weights == ("policy" if name == "sdft" else "own")
    assert parts.policy_loss.options.form == "full" and config.rollout.n == 1
    assert not parts.needs_ref


def test_presets_are_registered_by_this_distribution():
    for name in ("opsd", "sdft"):
        assert Plugins().registries.presets.get(name).owner.distribution == "corerl-distill"


def test_the_last_user_message_becomes_the_context():
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "{c}"}]
    row = {"ground_truth": 7, "extra_info": {"k": "v"}}
    changed = with_context(chat, "{prompt} = {ground_truth} {extra_info[k]}", row)
    assert [each["content"] for each in changed] == ["a", "b", "{c} = 7 v"] and chat[2]["content"] == "{c}"


def findings(student, **options):
    config = TrainConfig(ModelConfig(str(student)))
    config.actor.device = "cpu"
    return [str(getattr(each, "sentence", each)) for each in DistillOptions(**options).examine("k", config, None)]


def test_check_has_a_line_for_vocabularies_and_memory(tmp_path):
    student = write_model(tmp_path / "student")
    padded = write_model(tmp_path / "padded", vocabulary=264, hidden=64)
    found = findings(student, teacher=str(padded))
    logits = "teacher 'teacher' has 264 logits and the policy 259"
    assert found[0] == f"{logits}: tokens from 259 on, which no tokenizer uses, are left out"
    tokens = 64 * 8 * 512
    assert f"at most {tokens * 64 * 4 / 2**30:.2f} GiB of host memory, and its output layer 0.00 GiB" in found[1]
    assert len(findings(student, teacher=str(padded), form="top_k")) == 2
    assert findings(student, teacher=str(padded), form="sampled") == []


def test_check_has_a_line_for_the_memory_of_an_average(tmp_path):
    [found] = findings(write_model(tmp_path / "student", hidden=512), teachers={"a": TeacherOptions(weights="ema")})
    count = 2 * 259 * 512 + 5 * 512 + 2 * (4 * 512**2 + 3 * 512 * 48)
    assert found == f"the average of the policy's weights takes {count * 4 / 2**30:.2f} GiB, divided as the weights are"


def test_check_has_a_line_for_another_tokenizer(tmp_path):
    student, other = write_model(tmp_path / "student"), write_model(tmp_path / "other", vocabulary=400)
    own = byte_level(["abc abc"] * 9, 290)
    own.add_special_tokens({"additional_special_tokens": SPECIAL_TOKENS[:2], "eos_token": SPECIAL_TOKENS[2]})
    own.chat_template = CHAT_TEMPLATE
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (other / file).unlink()
    own.save_pretrained(other)
    found = findings(student, teachers={"o": TeacherOptions(path=str(other))}, form="top_k")
    assert "teacher 'o' has another tokenizer than the policy" in found[0]
    assert findings(student, teachers={"o": TeacherOptions(path=str(other))}, form="sampled") == []
