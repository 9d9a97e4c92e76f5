"""A small imitation of the W&B server on loopback: what a client sends is kept, as the real one would keep it."""

from __future__ import annotations

import base64
import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTITY = "someone"
HISTORY, SUMMARY = "wandb-history.jsonl", "wandb-summary.json"


@dataclass
class Kept:
    """A run as the server has it."""

    variables: dict[str, Any] = field(default_factory=dict)  # of the last UpsertBucket
    streams: dict[str, dict[int, str]] = field(default_factory=dict)  # lines by file and number
    files: dict[str, bytes] = field(default_factory=dict)
    exit: int | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        lines = self.streams.get(HISTORY, {})
        return [json.loads(lines[number]) for number in sorted(lines)]

    @property
    def rounds(self) -> list[int]:
        return [row["round"] for row in self.rows]

    @property
    def summary(self) -> dict[str, Any]:
        lines = self.streams.get(SUMMARY, {})
        return json.loads(lines[max(lines)]) if lines else {}

    @property
    def config(self) -> dict[str, Any]:
        return {key: node["value"] for key, node in json.loads(self.variables["config"]).items() if key != "_wandb"}


class WandbServer:
    """Answers what wandb and wandb-workspaces ask.

    ``trouble(path)`` may return an HTTP status that a request gets instead of its answer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._http: ThreadingHTTPServer | None = None
        self.port = 0
        self.clear()

    def clear(self) -> None:
        """Forgets everything, and answers."""
        self.runs: dict[str, Kept] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.operations: list[str] = []
        self.artifacts: list[dict[str, Any]] = []
        self.refused: set[str] = set()  # ids of runs that were deleted, which W&B does not take again
        self.trouble: Callable[[str], int | None] = lambda path: None
        if self.port and self._http is None:
            self.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Starts to listen; the second time on the same port."""
        self.trouble = lambda path: None
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                server._answer(self)

            do_GET = do_PUT = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that has hung up
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Goes away: connections are refused from now on."""
        if self._http is not None:
            self.trouble = lambda path: 503  # connections that are open
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    # ------------------------------------------------------------ requests
    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        body = _body(request)
        status = self.trouble(request.path)
        if status is not None:
            _send(request, {"error": "trouble", "errors": [{"message": "trouble"}]}, status)
            return
        with self._lock:
            _send(request, self._reply(request.path, body))

    def _reply(self, path: str, body: bytes) -> Any:
        if path == "/graphql":
            asked = json.loads(body)
            name = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
            operation = name[1] if name else "?"
            self.operations.append(operation)
            variables = asked.get("variables") or {}
            if variables.get("name") in self.refused:
                return {"data": None, "errors": [{"message": f"run {variables['name']} was deleted"}]}
            return {"data": getattr(self, f"_{operation}", self._unknown)(variables)}
        if stream := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path):
            return self._stream(self.runs[stream[1]], json.loads(body))
        if upload := re.fullmatch(r"/upload/([^/]+)/(.*)", path):
            self.runs[upload[1]].files[upload[2]] = body
        return {}

    def _stream(self, kept: Kept, told: dict[str, Any]) -> Any:
        for name, part in (told.get("files") or {}).items():
            lines = kept.streams.setdefault(name, {})
            lines |= {part["offset"] + number: line for number, line in enumerate(part["content"])}
        if "exitcode" in told:
            kept.exit = told["exitcode"]
        return {"exitcode": None, "limits": {}}

    # ------------------------------------------------------------ GraphQL
    def _unknown(self, variables: dict[str, Any]) -> Any:
        return {}

    def _Viewer(self, variables: dict[str, Any]) -> Any:
        return {"viewer": {"id": "v", "entity": ENTITY, "username": ENTITY, "flags": "{}", "teams": {"edges": []}}}

    _GetViewer = _GetDefaultEntity = _Viewer

    def _RunResumeStatus(self, variables: dict[str, Any]) -> Any:
        kept = self.runs.get(variables["name"])
        if kept is None:
            return {"model": {"id": "p", "name": "p", "entity": {"id": "e", "name": ENTITY}, "bucket": None}}
        rows = kept.rows
        bucket = {
            "id": _id(variables["name"]), "name": variables["name"], "projectName": "p", "summaryMetrics":
            json.dumps(kept.summary), "displayName": "d", "logLineCount": 0, "historyLineCount": len(rows),
            "eventsLineCount": 0, "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]), "eventsTail": "[]",
            "config": kept.variables["config"], "tags": [], "wandbConfig": '{"t": 1}',  # of a run that has begun
        }  # fmt: skip
        return {"model": {"id": "p", "name": "p", "entity": {"id": "e", "name": ENTITY}, "bucket": bucket}}

    def _UpsertBucket(self, variables: dict[str, Any]) -> Any:
        name = variables["name"]
        inserted = name not in self.runs
        kept = self.runs.setdefault(name, Kept())
        kept.variables |= {key: value for key, value in variables.items() if value is not None}
        project = {"id": "p", "name": variables.get("project"), "entity": {"id": "e", "name": ENTITY}}
        bucket = {
            "id": _id(name), "name": name, "displayName": variables.get("displayName"), "description": None,
            "config": None, "sweepName": None, "historyLineCount": len(kept.rows), "project": project,
        }  # fmt: skip
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def _CreateRunFiles(self, variables: dict[str, Any]) -> Any:
        run = variables["run"]
        files = [
            {"id": name, "name": name, "displayName": name, "uploadUrl": f"{self.url}/upload/{run}/{name}"}
            for name in variables["files"]
        ]
        return {"createRunFiles": {"runID": run, "uploadHeaders": [], "files": files}}

    def _ArtifactType(self, variables: dict[str, Any]) -> Any:
        return {"project": None}

    def _ArtifactByID(self, variables: dict[str, Any]) -> Any:
        return {"artifact": None}

    def _CreateArtifact(self, variables: dict[str, Any]) -> Any:
        """Says of every content that it is there already, so that nothing is uploaded."""
        self.artifacts.append(variables)
        sequence = {"id": "s", "latestArtifact": {"id": "a", "versionIndex": 0}}
        return {"createArtifact": {"artifact": {"id": "a", "state": "COMMITTED", "artifactSequence": sequence}}}

    def _GetProjects(self, variables: dict[str, Any]) -> Any:
        node = {"id": "p", "name": "thesis", "entityName": ENTITY, "createdAt": "2026-01-01", "isBenchmark": False}
        page = {"endCursor": None, "hasNextPage": False}
        return {"models": {"edges": [{"node": {**node, "user": None}, "cursor": "c"}], "pageInfo": page}}

    def _View(self, variables: dict[str, Any]) -> Any:
        found = [
            {"node": {"id": number, "displayName": view["displayName"], "spec": view["spec"]}}
            for number, view in self.views.items()
            if (view["type"], view["name"]) == (variables["viewType"], variables["viewName"])
        ]
        return {"project": {"allViews": {"edges": found}}}

    def _ProjectViews(self, variables: dict[str, Any]) -> Any:
        times = dict.fromkeys(("createdAt", "updatedAt"), "2026-01-01T00:00:00")
        found = [
            {"node": {"id": number, "user": None, **{k: view[k] for k in ("name", "displayName", "spec")}, **times,
                      "description": ""}, "cursor": "c"}
            for number, view in self.views.items()
            if view["type"] == "runs"
        ]  # fmt: skip
        page = {"endCursor": None, "hasNextPage": False}
        return {"project": {"allViews": {"edges": found, "pageInfo": page}}}

    def _UpsertView2(self, variables: dict[str, Any]) -> Any:
        return self._upsertView(variables)

    def _upsertView(self, variables: dict[str, Any]) -> Any:
        """With an id the view is changed, without one it is made."""
        known = variables.get("id")
        number = known or f"view{len(self.views)}"
        self.views[number] = {**self.views.get(number, {}), **variables}
        view = {
            "id": number, **{key: variables.get(key) for key in ("type", "name", "displayName", "description", "spec")},
            "project": {"id": "p", "name": variables["projectName"], "entityName": variables["entityName"]},
            "updatedAt": "2026-01-01T00:00:00",
        }  # fmt: skip
        return {"upsertView": {"view": view, "inserted": known is None}}


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """A server while the block lasts."""
    server = WandbServer()
    server.open()
    try:
        yield server
    finally:
        server.close()


def _id(name: str) -> str:
    return base64.b64encode(f"Run:v1:{name}".encode()).decode()


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding") == "chunked":
        body = b""
        while size := int(request.rfile.readline().split(b";")[0], 16):
            body += request.rfile.read(size)
            request.rfile.readline()
        request.rfile.readline()
    else:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
    return gzip.decompress(body) if request.headers.get("Content-Encoding") == "gzip" else body


def _send(request: BaseHTTPRequestHandler, answer: Any, status: int = 200) -> None:
    data = json.dumps(answer).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
