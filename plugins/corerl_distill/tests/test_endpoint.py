import http.server
import threading
from contextlib import closing

import pytest
import torch
from prompt_log_probs import PromptLogProbs
from teaching import Class, rollouts, write_model

from corerl.errors import DeadlineError, RunError
from corerl_distill import endpoint
from corerl_distill.options import DistillOptions, TeacherOptions
from proxies import silent_proxy

SOURCES = ["sums", "code", "sums"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {"student": write_model(folder / "student"), "teacher": write_model(folder / "teacher", hidden=48, seed=1)}


@pytest.mark.parametrize(("form", "top_k"), [("sampled", 1), ("top_k", 1), ("top_k", 20)])
@pytest.mark.parametrize("context", [None, "{prompt} {ground_truth}"])
def test_a_server_teaches_as_the_model_in_this_process(folders, form, top_k, context):
    given, found = rollouts(SOURCES), {}
    with closing(PromptLogProbs(folders["teacher"])) as server:
        for place in ({"url": server.url}, {"path": str(folders["teacher"])}):
            teachers = {"t": TeacherOptions(**place, context=context)}
            taught = Class(folders["student"], DistillOptions(teachers=teachers, form=form, top_k=top_k))
            found[next(iter(place))] = taught.loss_and_gradient(taught.batch(given, masked=(1, 0)))
    assert found["url"][0] == pytest.approx(found["path"][0], rel=1e-5, abs=1e-6)
    for name, each in found["path"][1].items():
        torch.testing.assert_close(found["url"][1][name], each, rtol=1e-3, atol=1e-6)
    assert {path for path, _ in server.requests} == {"/inference/v1/generate"}
    assert {body["sampling_params"]["prompt_logprobs"] for _, body in server.requests} == {
        top_k if form == "top_k" else 0
    }


def test_the_key_is_read_from_the_environment_and_a_server_in_trouble_is_asked_again(folders, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "abc")
    monkeypatch.setattr(endpoint.time, "sleep", lambda seconds: None)
    with closing(PromptLogProbs(folders["teacher"], failures=(503, 500))) as server:
        teachers = {"t": TeacherOptions(url=server.url, api_key="${env:TEACHER_KEY}", model="m", num_workers=1)}
        Class(folders["student"], DistillOptions(teachers=teachers, form="sampled")).batch(rollouts(SOURCES))
    assert set(server.keys) == {"Bearer abc"} and len(server.requests) == 5
    assert server.requests[0][1]["model"] == "m"


def test_no_proxy_is_asked_for_a_teacher_on_this_machine(folders, monkeypatch):
    with silent_proxy(monkeypatch) as asked, closing(PromptLogProbs(folders["teacher"])) as server:
        teachers = {"t": TeacherOptions(url=server.url, timeout=20.0)}
        Class(folders["student"], DistillOptions(teachers=teachers, form="sampled")).batch(rollouts(SOURCES))
    assert len(server.requests) == len(SOURCES) and asked == []


def test_a_redirect_is_an_error(folders, monkeypatch):
    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(302)
            self.send_header("Location", other.url)
            self.end_headers()

    monkeypatch.setenv("TEACHER_KEY", "abc")
    other = PromptLogProbs(folders["teacher"])
    with closing(other), http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        teachers = {"t": TeacherOptions(url=url, api_key="${env:TEACHER_KEY}", num_workers=1)}
        taught = Class(folders["student"], DistillOptions(teachers=teachers, form="sampled"))
        with pytest.raises(RunError, match=r"teacher 't': .* answered 302"):
            taught.batch(rollouts(["sums"]))
        server.shutdown()
    assert other.requests == []


def test_a_refusal_is_shown_and_not_asked_again(folders):
    with closing(PromptLogProbs(folders["teacher"], most=4)) as server:
        teachers = {"t": TeacherOptions(url=server.url, num_workers=1)}
        taught = Class(folders["student"], DistillOptions(teachers=teachers, form="top_k", top_k=8))
        with pytest.raises(RunError, match=r"teacher 't': .* answered 400: .*more than max-logprobs 4"):
            taught.batch(rollouts(["sums"]))
    assert len(server.requests) == 1


def test_a_silent_server_is_late(folders):
    released = threading.Event()
    with closing(PromptLogProbs(folders["teacher"], delay=released)) as server:
        teachers = {"t": TeacherOptions(url=server.url, timeout=0.2)}
        taught = Class(folders["student"], DistillOptions(teachers=teachers, form="sampled"))
        try:
            with pytest.raises(DeadlineError, match=r"teacher 't' at .* did not answer within 0.2 s"):
                taught.batch(rollouts(["sums"]))
        finally:
            released.set()


def test_an_unreachable_server_is_named(folders, monkeypatch):
    monkeypatch.setattr(endpoint.time, "sleep", lambda seconds: None)
    teachers = {"t": TeacherOptions(url="http://127.0.0.1:9")}
    taught = Class(folders["student"], DistillOptions(teachers=teachers, form="sampled"))
    with pytest.raises(RunError, match=r"teacher 't': http://127.0.0.1:9/inference/v1/generate cannot be reached"):
        taught.batch(rollouts(["sums"]))


def test_an_answer_without_log_probs_is_named(folders, monkeypatch):
    monkeypatch.setattr(endpoint.Server, "_ask", lambda *_: {"prompt_logprobs": None})
    teachers = {"t": TeacherOptions(url="http://127.0.0.1:9")}
    taught = Class(folders["student"], DistillOptions(teachers=teachers, form="sampled"))
    with pytest.raises(RunError, match="gave no log-probs of the prompt's tokens"):
        taught.batch(rollouts(["sums"]))
