import base64
import gzip
import hashlib
import itertools
import json
import re

import pytest

from corerl.cli.main import run
from corerl_tools.report import page as page_module
from corerl_tools.report.page import pack_samples, write_page
from corerl_tools.report.runs import flat, read_records, run_names
from corerl_tools.report.samples import Samples


@pytest.fixture(scope="module")
def text(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert run(["report", *map(str, runs), "-o", str(path)]) == 0
    return path.read_text()


def unpacked(text, name):
    [coded] = re.findall(rf'<script type="application/octet-stream" id="{name}">([A-Za-z0-9+/=]*)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(coded)))


def test_the_page_holds_the_runs_with_status_curves_and_config(text):
    one, two = unpacked(text, "data")["runs"]
    assert (one["name"], two["name"]) == ("a/one", "a/two")
    assert (one["status"]["state"], two["status"]["error"]) == ("finished", "RunError: the <b>end</b>")
    assert (one["steps"], two["config"]["actor.optim.lr"]) == (30, "0.01")
    assert one["curves"]["metrics"]["critic/score/mean"]["mean"][-1] == 1
    assert one["parts"] == {"adv_estimator: grpo": "corerl-grpo 0.1.0"}
    assert one["score"]["rows"] == [0, 1]


def test_the_page_knows_the_defaults_of_the_configuration(text):
    defaults = unpacked(text, "data")["defaults"]
    assert (defaults["trainer.total_epochs"], defaults["model.dtype"]) == ("1", "auto")
    assert "model.path" not in defaults


def test_samples_and_their_index_agree(text):
    index, rows = unpacked(text, "index"), unpacked(text, "samples-0")
    assert len(index) == len(rows) == 2 * (15 + 6)
    for name in ("run", "step", "score", "length"):
        assert [each[name] for each in index] == [row[name] for row in rows]
    assert index[0]["text"].endswith("→ two and <two>")


def test_the_page_asks_for_nothing_from_anywhere(text):
    addresses = set(re.findall(r"https?://[^\"'\s<]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|img|iframe|link)[^>]* (src|href)=\"(?!data:)", text)
    assert "default-src 'none'" in text


def test_the_policy_allows_the_script_by_its_digest(text):
    [script] = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in text
    assert text.count("<script>") == 1


def test_the_same_runs_give_the_same_page(runs, tmp_path):
    records = [read_records(folder) for folder in runs]
    for name in ("a.html", "b.html"):
        write_page(tmp_path / name, runs, records, 10)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_too_many_bytes_of_samples_leave_some_out_evenly(monkeypatch):
    rows = [
        {"step": i, "row": 0, "group": 0, "source": "x", "score": 0.0, "length": 1, "error": None, "messages": []}
        for i in range(900)
    ]
    rows = [row | {"response": hashlib.sha256(str(i).encode()).hexdigest()} for i, row in enumerate(rows)]
    monkeypatch.setattr(page_module, "MOST_BYTES", 20_000)
    parts, index = pack_samples([Samples(rows, None, None)], [{}])
    assert sum(map(len, parts.values())) <= 20_000
    steps = [each["step"] for each in index]
    assert 150 < len(steps) < 900
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert max(gaps) - min(gaps) <= 1


def test_the_command_prints_how_scores_went_and_writes_into_the_run(runs, capsys):
    assert run(["report", str(runs[0])]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "a/one"
    assert printed[1].endswith("█  critic/score/mean: 0.033 at step 1, 1.000 at step 30")
    assert printed[2] == "  ▁  val-core/x/reward/mean@1: 0.125 at step 0, 0.125 at step 0"
    assert printed[3] == (
        "  timing_s/step: 1800.00 s, mean of steps 2 to 30: update_actor 1000.00 (56%), gen 600.00 (33%), "
        "other 200.00 (11%)"
    )
    assert (runs[0] / "report.html").is_file()
    assert printed[-1] == f"report: {runs[0] / 'report.html'}"


def test_a_folder_that_is_no_run_is_a_wrong_request(tmp_path, capsys):
    assert run(["report", str(tmp_path)]) == 2
    assert f"{tmp_path} holds no metrics.jsonl of a run" in capsys.readouterr().err


def test_beside_runs_a_folder_that_is_none_is_left_out_and_named(runs, tmp_path, capsys):
    assert run(["report", str(tmp_path), str(runs[0]), "--out", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [f"{tmp_path} is left out: it holds no metrics.jsonl of a run", "a/one"]
    assert (tmp_path / "page.html").is_file()


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    folders = [tmp_path / "x" / "a" / "1", tmp_path / "y" / "a" / "1"]
    assert run_names(folders) == [str(folder) for folder in folders]
    assert run_names(folders[:1]) == ["a/1"]


def test_configuration_is_flat_with_values_as_one_writes_them():
    values = {"a": {"b": [1, "x"], "c": None, "d": {}}, "e": "text", "f": True}
    assert flat(values) == {"a.b": '[1, "x"]', "a.c": "null", "a.d": "{}", "e": "text", "f": "true"}


def test_numbers_that_json_has_not_are_left_out_of_the_page() -> None:
    from corerl_tools.report.page import pack

    assert pack({"a": [float("nan"), 1.0], "b": float("inf")}) == pack({"a": [None, 1.0], "b": None})
