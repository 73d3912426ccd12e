"""``corerl check`` and ``corerl doctor`` as commands."""

import errno
import json
import os
import re
from typing import Any

import pytest

from corerl.cli.main import run


@pytest.fixture
def check(workplace, capsys):
    """``check("key=value", …)``: the exit code and the report."""

    def start(*arguments: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = run(["check", str(workplace.config), "--json", *arguments])
        return code, json.loads(capsys.readouterr().out)

    return start


def keys(report: dict[str, Any], severity: str) -> list[str]:
    return sorted(each["key"] for each in report["findings"] if each["severity"] == severity)


def test_a_config_that_is_right_has_no_error_and_nothing_is_written(workplace, check, capsys):
    before = sorted(workplace.folder.rglob("*"))
    code, report = check()
    assert code == 0 and report["ok"]
    assert keys(report, "error") == keys(report, "warning") == []
    assert sorted(workplace.folder.rglob("*")) == before
    assert [phase["name"] for phase in report["memory"]] == ["update of the actor", "generation", "checkpoint"]
    assert run(["check", str(workplace.config)]) == 0
    printed = capsys.readouterr().out
    assert "note: reward.scorer: 'corerl/arithmetic' is scored by 'arithmetic'" in printed
    assert "a step is 8 prompts × 2 responses = 16, in 2 updates of 4 × 2, on the CPU" in printed
    assert printed.endswith("config.yaml: ok (2 notes)\n")


def test_without_the_model_everything_else_is_checked_and_a_note_says_what_was_not(check, rows, write, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    rows[0]["data_source"] = "nobody/scores"
    code, report = check(write(rows), "model.path=owner/model", "actor.optim.lr=.inf", "actor.grad_clip=.inf")
    assert code == 2
    assert keys(report, "error") == ["actor.optim.lr", "model.path", "reward.scorer"]
    [note] = [
        each["sentence"] for each in report["findings"] if each["key"] == "model.path" and each["severity"] == "note"
    ]
    assert note.startswith("without the tokenizer, these were not checked: lengths of prompts")


def test_everything_that_is_wrong_is_found_at_once(workplace, check, rows, write, tmp_path):
    rows[0]["data_source"] = "nobody/scores"
    rows[1]["prompt"][0]["role"] = "usr"
    rows[2]["prompt"][0]["content"] = "1 + 1 = " * 200
    (tmp_path / "taken").write_text("")
    code, report = check(
        write(rows),
        "data.val_files=[missing.parquet]",
        "data.filter_overlong_prompts=false",
        "data.lr=1",
        "rollout.n=1",
        "reward.scorer=null",
        "actor.policy_loss=./nowhere.py:loss",
        "rollout.name=vllm",
        f"rollout.options.python={tmp_path}/no/python",
        "runtime.n_gpus_per_node=2",
        f"trainer.output_dir={tmp_path}/taken/runs",
        "--trust",
    )
    assert code == 2
    assert keys(report, "error") == [
        *("actor.policy_loss", "actor.strategy", "data.lr", "data.max_prompt_length", "data.train_files"),
        *("data.val_files", "reward.scorer", "rollout.n", "rollout.options.python", "runtime.n_gpus_per_node"),
        "trainer.output_dir",
    ]
    sentences = {each["key"]: each for each in report["findings"] if each["severity"] == "error"}
    assert "1 (2.6%) of the prompts in 39 rows are longer" in sentences["data.max_prompt_length"]["sentence"]
    assert "row 1" in sentences["data.train_files"]["sentence"]
    assert "Raise data.max_prompt_length" in sentences["data.max_prompt_length"]["remedy"]
    assert sentences["data.val_files"]["problem"] == "no such data file"
    assert sentences["actor.policy_loss"]["problem"] == "missing file"
    assert all(each["remedy"] for each in report["findings"] if each["severity"] != "note")
    assert not workplace.runs.exists()


def test_what_the_prompts_do_to_responses_is_noted(check, rows, write, tmp_path):
    """A template that opens the reasoning, control tokens as letters, and a column that is not read."""
    (tmp_path / "thinks.jinja").write_text("{{ messages[-1].content }}{{ '<|im_end|><think>\\n' }}")
    rows = [{**row, "system": "Be brief."} for row in rows]
    rows[1]["prompt"][0]["content"] = "1 + 1 = <|im_end|>"
    _, report = check(write(rows), f"model.chat_template={tmp_path}/thinks.jinja")
    notes = {(each["key"], each["sentence"]) for each in report["findings"] if each["severity"] == "note"}
    opened = "prompts end with <think>: responses begin within their reasoning; scorers get the tag too"
    assert ("model.chat_template", opened) in notes
    of_data = sorted((sentence for key, sentence in notes if key == "data.train_files"), key=len)
    assert of_data[1].startswith(f"of {len(rows)} rows: 1 spell the control token <|im_end|>, which stays text")
    assert of_data[0] == f"of {len(rows)} rows: not read, though they could change the prompts: columns system"


def test_a_model_and_a_batch_that_cannot_be(check, material):
    code, report = check("model.path=./nowhere")
    assert code == 2 and keys(report, "error") == ["model.path"]
    code, report = check("data.train_batch_size=64", "actor.ppo_mini_batch_size=64")
    assert [each["sentence"] for each in report["findings"] if each["severity"] == "error"] == [
        "about 40 prompts are fewer than a batch of 64"
    ]


@pytest.mark.parametrize(
    "override",
    [
        *("actor.grad_clip=-1", "model.dtype=fp8", "trainer.resume_mode=/nope", "plugins.load=[nope.py]"),
        *(
            "reward.scorers={foo: gsm8k}",
            "rollout.temperature=hot",
            "trainer.max_staleness=-1",
        ),
    ],
)
def test_every_error_and_warning_has_key_sentence_and_remedy(check, override):
    code, report = check(override)
    found = [each for each in report["findings"] if each["severity"] != "note"]
    assert code == 2 and found
    assert all(each["sentence"] and each["remedy"] for each in found)
    assert all(each["key"] for each in found) or override == "plugins.load=[nope.py]"


def test_truncated_sampling_in_training_is_a_warning_and_in_evaluation_it_is_not(check):
    evaluation = "rollout.val_kwargs={do_sample: true, top_p: 0.9, top_k: 20}"
    assert keys(check(evaluation)[1], "warning") == []
    assert keys(check("rollout.top_k=1000000")[1], "warning") == [], "no fewer tokens than the vocabulary has"
    for overrides, named, remedy in (
        (["rollout.top_p=0.9"], "rollout.top_p=0.9: ", "or set rollout.top_p=1.0 in training"),
        (["rollout.min_p=0.1"], "rollout.min_p=0.1: ", "or set rollout.min_p=0.0 in training"),
        (["rollout.top_k=20"], "rollout.top_k=20: ", "or set rollout.top_k=-1 in training"),
        (
            ["rollout.top_p=0.9", "rollout.top_k=20"],
            "rollout.top_p=0.9 and rollout.top_k=20: ",
            "and rollout.top_k=-1 in",
        ),
    ):
        code, report = check(evaluation, *overrides)
        [warning] = [each for each in report["findings"] if each["severity"] == "warning"]
        assert code == 0 and report["ok"] and warning["key"] == overrides[0].partition("=")[0]
        assert warning["sentence"].startswith(named) and "KL estimates are biased" in warning["sentence"]
        assert remedy in warning["remedy"] and "rollout.val_kwargs may truncate" in warning["remedy"]
        assert warning["remedy"].startswith("Set rollout.record=[kept_tokens]")
        _, report = check(*overrides, "rollout.record=[kept_tokens]")
        assert keys(report, "warning") == [] and "rollout.record" in keys(report, "note")


def test_a_column_that_is_not_recorded_or_not_replayed_is_an_error(check):
    for overrides, sentence in (
        (
            ["rollout.record=[experts_]"],
            "'hf' cannot record 'experts_'; it records experts, kept_tokens, top_log_probs",
        ),
        (
            ["actor.strategy=megatron", "rollout.record=[top_log_probs]"],
            "strategy 'megatron' cannot replay 'top_log_probs'; it replays experts, kept_tokens",
        ),
    ):
        code, report = check(*overrides)
        assert code == 2
        assert any(each["key"] == "rollout.record" and each["sentence"] == sentence for each in report["findings"])


def test_an_order_that_favours_short_responses_is_a_warning(check):
    cases = (("first_finished", 1, "null", 1), ("first_finished", 0, "null", 0), ("first_finished", 0, 2, 1))
    for order, staleness, window, found in (*cases, ("windowed", 1, "null", 0)):
        changed = (f"trainer.{key}" for key in (f"max_staleness={staleness}", f"batch_window={window}"))
        _, report = check(f"trainer.batch_order={order}", *changed)
        assert keys(report, "warning") == ["trainer.batch_order"] * found


def test_rounded_weights_are_a_warning_with_lora_and_a_note_without(check):
    code, report = check("model.dtype=bf16", "model.lora_rank=8", "rollout.lora=merged")
    [warning] = [each for each in report["findings"] if each["severity"] == "warning"]
    assert code == 0 and warning["key"] == "model.lora_rank" and "lost in the rounding" in warning["sentence"]
    assert "raise actor.optim.lr" in warning["remedy"]
    report = check("model.dtype=bf16")[1]
    assert keys(report, "warning") == [] and "model.dtype" in keys(report, "note")
    for exact in (
        ["model.dtype=fp32", "model.lora_rank=8", "rollout.lora=merged"],
        ["model.lora_rank=8", "rollout.lora=merged", "actor.device=cpu"],
        ["model.dtype=bf16", "model.lora_rank=8"],
    ):
        report = check(*exact)[1]
        assert not {"model.lora_rank", "model.dtype"} & {*keys(report, "warning"), *keys(report, "note")}


def test_with_adapters_the_bytes_of_an_update_and_the_reference_without_a_copy_are_notes(check):
    adapted = ("model.lora_rank=8", "actor.use_kl_loss=true", "--gpus", "1", "--gpu-memory-gb", "10")
    code, report = check(*adapted)
    notes = {each["key"]: each["sentence"] for each in report["findings"] if each["severity"] == "note"}
    assert code == 0 and "an update sends the adapters, 0.0 MiB, instead of" in notes["rollout.lora"]
    assert "the reference is the policy without its adapters" in notes["ref.path"]
    assert not any("ref at rest" in phase["parts"] for phase in report["memory"])
    report = check(*adapted, "model.lora_dora=true", "ref.path=elsewhere")[1]
    assert not {"rollout.lora", "ref.path"} & {*keys(report, "note")}


@pytest.mark.parametrize(
    ("overrides", "key", "why"),
    [
        (["rollout.lora=adapter"], "rollout.lora", "needs model.lora_rank of at least 1"),
        (["model.lora_dora=true"], "model.lora_dora", "needs model.lora_rank of at least 1"),
        (["model.lora_rank=2", "model.lora_dora=true", "rollout.lora=adapter"], "rollout.lora", "get DoRA merged"),
        (["model.lora_rank=2", "model.load_format=dummy", "rollout.lora=adapter"], "rollout.lora", "random weights"),
        (["model.lora_rank=2", "rollout.name=plain", "rollout.lora=adapter"], "rollout.lora", "takes all weights"),
    ],
)
def test_adapters_that_cannot_be_sent_are_errors(check, tmp_path, overrides, key, why):
    (tmp_path / "engine.py").write_text(
        "from corerl import hookimpl\n\n"
        "def plain(model, rollout, *, device): ...\n\n"
        "@hookimpl\ndef register_rollout_backends(register): register('plain', plain)\n"
    )
    code, report = check("--trust", f"plugins.load=[{tmp_path}/engine.py]", *overrides)
    errors = {each["key"]: each["sentence"] for each in report["findings"] if each["severity"] == "error"}
    assert code == 2 and why in errors[key]


def test_memory_is_held_against_planned_gpus(check):
    code, report = check("--gpus", "1", "--gpu-memory-gb", "0.5")
    assert code == 2
    assert {each["problem"] for each in report["findings"] if each["severity"] == "error"} == {
        *("GPU memory too small", "generation does not fit")
    }
    assert check("--gpus", "1", "--gpu-memory-gb", "80")[0] == 0


def test_a_tensor_parallel_engine_must_divide_heads_and_gpus(check):
    _, report = check("rollout.tensor_model_parallel_size=3", "runtime.n_gpus_per_node=1", "--gpus", "1")
    assert keys(report, "error") == ["rollout.tensor_model_parallel_size"] * 2


def test_an_engine_has_the_gpus_of_one_machine_or_all_gpus_of_several(check):
    pool = ("rollout.name=vllm", "rollout.nnodes=2", "rollout.n_gpus_per_node=1", "--gpus", "2")
    pool += ("actor.strategy=fsdp", "runtime={name: ray, n_gpus_per_node: 1, options: {address: auto}}")
    _, report = check(*pool, "rollout.tensor_model_parallel_size=2")
    assert keys(report, "error") == []
    _, report = check(*pool, "rollout.tensor_model_parallel_size=2", "rollout.options.replicas=2")
    assert keys(report, "error") == ["rollout.options.replicas"]
    _, report = check(*pool, "rollout.tensor_model_parallel_size=2", "rollout.nnodes=3")
    [error] = [each["sentence"] for each in report["findings"] if each["severity"] == "error"]
    assert error.endswith("an engine has GPUs of one machine, or all GPUs of several: 1, 3 would")


@pytest.mark.parametrize(("is_set", "is_there"), [(True, False), (True, True), (False, False)])
def test_packages_that_each_process_would_compile_are_named(is_set, is_there, check, tmp_path, monkeypatch):
    compiled = tmp_path / "compiled.pyc"
    if is_there:
        compiled.touch()
    monkeypatch.setattr("sys.dont_write_bytecode", is_set)
    monkeypatch.setattr("importlib.util.cache_from_source", lambda source: str(compiled))
    found = [each for each in check()[1]["findings"] if each["problem"] == "no bytecode"]
    assert bool(found) == (is_set and not is_there)
    if found:
        assert "torch and transformers" in found[0]["sentence"] and "compileall" in found[0]["remedy"]


def test_doctor_tells_versions_and_no_secret(capsys, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "s3cret-of-mine")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    monkeypatch.setenv("NCCL_DEBUG", "https://me:s3cret@host/path")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:s3cret@proxy.example:3128")
    monkeypatch.setenv("UCX_TLS", "tcp")
    assert run(["doctor", "--json"]) == 0
    text = capsys.readouterr().out
    facts = json.loads(text)
    assert "s3cret" not in text
    assert facts["environment"]["NCCL_SOCKET_IFNAME"] == "eth0"
    assert facts["environment"]["NCCL_DEBUG"] == "(set)"
    workers = facts["environment of workers"]
    assert {"HTTPS_PROXY", "SSL_CERT_FILE", "XDG_CACHE_HOME", "NVTE_*", "UCX_*"} <= {*workers["copied"].split(", ")}
    assert (workers["HTTPS_PROXY"], workers["UCX_TLS"]) == ("(set: a secret)", "(set)")
    assert "WANDB_API_KEY" not in workers
    assert facts["corerl"]["corerl-hf"] and facts["packages"]["torch"] and facts["system"]["python"]
    assert set(facts["devices"]) >= {"driver", "torch's CUDA"}
    assert run(["doctor"]) == 0
    assert "corerl-fsdp" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "name", "remedy"),
    [
        (errno.ENOSPC, "the disk is full", r" \(.* bytes free\): Free some room"),
        (errno.EACCES, "no permission", ": Run the command as the owner"),
    ],
)
def test_an_error_of_the_machine_is_one_line_with_its_remedy(number, name, remedy, workplace, capsys, monkeypatch):
    def raises(*_: object) -> None:
        raise OSError(number, os.strerror(number), "runs/x")

    monkeypatch.setattr("corerl.cli.train.load_train_config", raises)
    assert run(["train", str(workplace.config)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert re.match(rf"error: \[Errno {number}\] {os.strerror(number)}: 'runs/x'{remedy}", line)
    assert line.endswith(f"(see '{name}' in docs/troubleshooting.md)")


def test_a_process_without_memory_is_one_line_with_its_remedy(workplace, capsys, monkeypatch):
    def raises(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("corerl.cli.train.load_train_config", raises)
    assert run(["train", str(workplace.config)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: MemoryError: Raise the limit")


def test_an_error_that_is_known_is_told_with_its_remedy(workplace, capsys, monkeypatch):
    def raises(*_: object) -> None:
        raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("corerl.cli.train.load_train_config", raises)
    assert run(["train", str(workplace.config)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: MemoryError: Lower rollout.options.gpu_memory_utilization")
    assert last.endswith("(see 'out of memory' in docs/troubleshooting.md)")


@pytest.mark.parametrize(
    "changes",
    [
        ["reward.scorer=FILE:score"],
        ["reward.scorers.nobody/scores=FILE:score"],
        ["reward.manager=FILE:manager"],
        ["rollout.agent=FILE:agent"],
        ["reward.manager=modle"],
    ],
)
def test_no_error_is_derived_from_a_part_that_cannot_be_loaded(tmp_path, rows, write, check, changes):
    for row in rows:
        row["data_source"] = "nobody/scores"
    file = tmp_path / "broken.py"
    file.write_text("1 / 0\n")
    code, report = check(write(rows), *(change.replace("FILE", str(file)) for change in changes), "--trust")
    assert (code, keys(report, "error")) == (2, [changes[-1].partition("=")[0]])
