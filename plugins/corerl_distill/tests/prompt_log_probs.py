"""A server with the answers of vLLM's ``/inference/v1/generate`` for log-probs of the prompt, from a real model."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from transformers import AutoModelForCausalLM


class PromptLogProbs:
    """Serves the model of a folder; ``failures``: HTTP codes of the first answers; ``delay``: event to wait for."""

    def __init__(self, folder, failures=(), delay=None, most=20):
        model = AutoModelForCausalLM.from_pretrained(folder)
        self.requests, self.keys, self._failures = [], [], list(failures)
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append((self.path, body))
                server.keys.append(self.headers.get("Authorization"))
                if delay is not None:
                    delay.wait(20)
                wanted = body["sampling_params"]["prompt_logprobs"]
                if server._failures:
                    return self.answer(server._failures.pop(0), {"error": {"message": "try again"}})
                if wanted > most:
                    return self.answer(400, {"error": {"message": f"more than max-logprobs {most}"}})
                return self.answer(200, {"prompt_logprobs": positions(model, body["token_ids"], wanted)})

            def answer(self, code, document):
                content = json.dumps(document).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@torch.no_grad()
def positions(model, ids, wanted):
    """None for the first token; of each other one the ``wanted`` most probable tokens, and the token itself."""
    found = [None]
    for row, token in zip(torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], dim=-1), ids[1:], strict=True):
        ranks = row.argsort(descending=True).tolist()
        kept = [*ranks[:wanted], *([] if token in ranks[:wanted] else [token])]
        found.append({str(each): {"logprob": float(row[each]), "rank": ranks.index(each) + 1} for each in kept})
    return found
