"""A policy behind a minimal endpoint: it answers every chat with one text, and remembers the requests."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ToyModel:
    """The two parts of a model that the harness uses."""

    def __init__(self, answer="4"):
        self.api_key, self.answer = "key-of-the-episode", answer
        self.requests = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                model.requests.append((self.path, self.headers["Authorization"], body))
                message = {"role": "assistant", "content": model.answer}
                content = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
                self.send_response(200)
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


ASK = """\
import json, os, urllib.request

def ask(text):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": [{"role": "user", "content": text}]}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request, timeout=20))["choices"][0]["message"]["content"]
"""
"""the beginning of an agent in Python"""
