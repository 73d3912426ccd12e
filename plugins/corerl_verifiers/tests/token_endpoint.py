"""A minimal endpoint of tokens for one episode: it writes texts of a script, as bytes, and remembers the requests."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

END = 258


class TokenModel:
    """The parts of a model that a training client over HTTP uses."""

    def __init__(self, *answers):
        self.api_key, self.requests, self.paths = "key-of-the-episode", [], []
        self._answers = list(answers)
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.answer({"object": "list", "data": [{"id": "policy", "object": "model", "max_model_len": 4096}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.headers["Authorization"] != f"Bearer {model.api_key}":
                    self.send_error(401)
                    return
                model.paths.append(self.path)
                model.requests.append(body)
                ids = [*model._answers[(len(model.requests) - 1) % len(model._answers)].encode(), END]
                content = [{"token": f"token_id:{each}", "logprob": -0.5, "top_logprobs": []} for each in ids]
                choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
                self.answer({"request_id": "r", "choices": [choice], "prompt_logprobs": None})

            def answer(self, document):
                content = json.dumps(document).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/e1/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
