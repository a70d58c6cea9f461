"""A Hugging Face hub with one repository, on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPOSITORY = "org/name"
REVISION = "c0ffee" + "0" * 34


@contextlib.contextmanager
def hub_server(files: Mapping[str, bytes]) -> Iterator[str]:
    """Serves the files as ``org/name``; yields the address to be set as HF_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name.replace("_", "-"), text)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            resolved = f"/{REPOSITORY}/resolve/{REVISION}/"
            if path in (f"/api/models/{REPOSITORY}", f"/api/models/{REPOSITORY}/revision/{REVISION}"):
                siblings = [
                    {
                        "rfilename": name,
                        "size": len(data),
                        "lfs": {
                            "sha256": hashlib.sha256(data).hexdigest(),
                            "size": len(data),
                            "pointerSize": 1,
                        },
                    }
                    for name, data in files.items()
                ]
                body = json.dumps({"id": REPOSITORY, "sha": REVISION, "siblings": siblings}).encode()
                self.answer(200, body, Content_Type="application/json")
            elif path.startswith(resolved) and path.removeprefix(resolved) in files:
                data = files[path.removeprefix(resolved)]
                etag = f'"{hashlib.sha256(data).hexdigest()}"'
                self.answer(200, data, ETag=etag, X_Repo_Commit=REVISION)
            else:
                self.answer(404, b"", X_Error_Code="RepoNotFound")

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
