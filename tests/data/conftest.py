"""A web server of this machine that can fail in every way a real one does."""

import http.server
import re
import threading

import pytest

from nanode.data import download


class Server:
    """Serves ``files``; ``answers`` holds one behaviour for each of the next requests.

    A behaviour is "plain" (no ranges), "wrong range", an HTTP status, ("cut", n): close the
    connection after n bytes, ("stall", n): send nothing after them, or ("redirect", address). Where
    none is left, ranges are served as asked.
    """

    def __init__(self):
        self.files = {}
        self.answers = []
        self.ranges = []
        #: Set once those that stall may close.
        self.gone_on = threading.Event()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *arguments):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *arguments: None  # a client that hangs up is no news
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, name):
        return f"http://127.0.0.1:{self.http.server_port}/{name}"

    def answer(self, request):
        how = self.answers.pop(0) if self.answers else None
        content = self.files.get(request.path[1:])
        asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        self.ranges.append(int(asked[1]) if asked else None)
        if content is None or isinstance(how, int):
            request.send_error(404 if content is None else how)
            return
        if isinstance(how, tuple) and how[0] == "redirect":
            request.send_response(302)
            request.send_header("Location", how[1])
            request.end_headers()
            return
        start = int(asked[1]) if asked and how != "plain" else 0
        request.send_response(206 if start else 200)
        if start:
            first = start + 1 if how == "wrong range" else start
            request.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        if how != "no length":
            request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        stop = start + how[1] if isinstance(how, tuple) else len(content)
        request.wfile.write(content[start:stop])
        if isinstance(how, tuple) and how[0] == "stall":
            request.wfile.flush()
            self.gone_on.wait(10)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "PAUSE", 0.0)
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture(autouse=True)
def _no_data_outside(monkeypatch, tmp_path):
    """Nothing outside the test's own folder is ever looked at."""
    monkeypatch.setenv("NANODE_DATA", str(tmp_path / "unset"))
