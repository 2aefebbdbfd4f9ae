"""A Kubernetes API server on loopback that keeps objects, for the client code of the launcher.

Beside lists (``kubernetes_api.py`` has those of pods alone) it has what a real one has and a client
must cope with: resource versions, watches with bookmarks that end when the server likes, 410 after
versions were forgotten, server-side apply with field managers and its 409, 429 with
``Retry-After``, and logs whose streams break in the middle of a line. Messages are those of a real
1.36 server.
"""

import copy
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse
from uuid import uuid4

from helpers.kubernetes.pod_listings import Listed
from helpers.kubernetes.rules import (
    PLURALS,
    conflict,
    leaves,
    merged,
    missing,
    no_object,
    refused_pod,
    refused_update,
    status,
)

KINDS = {plural: kind for kind, plural in PLURALS.items()}
_CREATED = "2026-11-20T10:00:00Z"


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any = None
    content_type: str = ""
    accept: str = ""


@dataclass
class Refused:
    """The next answer instead of a real one; ``cut`` closes the connection, ``empty`` has no body.

    With a method or the end of a path it is the answer to the next request that fits.
    """

    code: int = 0
    message: str = ""
    retry_after: str = ""
    cut: bool = False
    empty: bool = False
    method: str = ""
    path: str = ""

    def fits(self, asked: "Asked") -> bool:
        """Whether it is the answer to this request."""
        return self.method in ("", asked.method) and asked.path.endswith(self.path)


@dataclass
class Log:
    """A container's log.

    Attributes:
        lines: (RFC 3339 time, text), as they were written.
        tail: Bytes behind the last line, without an end.
        ended: A stream that follows ends where the log does.
        cuts: Bytes after which the next streams break off, one each; None: not.
    """

    lines: list[tuple[str, str]] = field(default_factory=list)
    tail: bytes = b""
    ended: bool = True
    cuts: list[int | None] = field(default_factory=list)


class KubernetesCluster:
    """What the server has, and what it was asked.

    Attributes:
        refusals: Instead of the next answers.
        watch_s: The server ends watches after this, whatever they ask for.
        expired_by_status: 410 as a status; otherwise as an event of a watch.
        managers: By (kind, name): paths that others own, e.g. ``{"spec.replicas": "kubectl"}``.
        logs: By pod, and by ``pod/previous``.
        warnings: By kind: beside the answer to what is applied of it.
        namespaces: Those that are there. In another one lists are empty, as a real server's.
        on_patch: Called with the kind and the object after every patch, as a controller is.
        on_delete: Called with the kind and the object after every request to delete one.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.refusals: list[Refused] = []
        self.watch_s = 0.2
        self.expired_by_status = False
        self.managers: dict[tuple[str, str], dict[str, str]] = {}
        self.logs: dict[str, Log] = {}
        self.on_patch: Callable[[str, Listed], None] = lambda *_: None
        self.on_delete: Callable[[str, Listed], None] = lambda *_: None
        self.namespaces = {"train"}
        self.warnings: dict[str, str] = {}
        self.url = ""
        self.changed = threading.Condition(threading.RLock())
        self.closing = False
        self._objects: dict[tuple[str, str], Listed] = {}
        self._version = 1000
        self._oldest = 0
        self._history: list[tuple[int, str, str, Listed]] = []
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        self.put("StorageClass", {"metadata": {"name": "standard", "annotations": default}})

    # -- what tests and controllers do ---------------------------------------------------------

    def put(self, kind: str, item: Listed) -> Listed:
        """Make an object, or change it."""
        with self.changed:
            name = item["metadata"]["name"]
            what = "MODIFIED" if (kind, name) in self._objects else "ADDED"
            self._version += 1
            item = copy.deepcopy(item)
            before = self._objects.get((kind, name), {}).get("metadata", {})
            metadata = item["metadata"]
            metadata["resourceVersion"] = str(self._version)
            metadata.setdefault("uid", before.get("uid") or str(uuid4()))
            metadata.setdefault("creationTimestamp", _CREATED)
            self._objects[kind, name] = item
            self._history.append((self._version, kind, what, item))
            self.changed.notify_all()
            return item

    def remove(self, kind: str, name: str) -> None:
        with self.changed:
            item = copy.deepcopy(self._objects.pop((kind, name)))
            self.managers.pop((kind, name), None)
            self._version += 1
            item["metadata"]["resourceVersion"] = str(self._version)
            self._history.append((self._version, kind, "DELETED", item))
            self.changed.notify_all()

    def get(self, kind: str, name: str) -> Listed | None:
        with self.changed:
            return self._objects.get((kind, name))

    def names(self) -> list[tuple[str, str]]:
        """Kind and name of every object."""
        with self.changed:
            return sorted(self._objects)

    def forget(self) -> None:
        """Versions before now are not known any more, as after a compaction."""
        with self.changed:
            self._version += 1
            self._oldest = self._version
            self._history.clear()
            self.changed.notify_all()

    def log(self, pod: str) -> Log:
        return self.logs.setdefault(pod, Log())

    def say(self, pod: str, time: str, text: str) -> None:
        """A container writes a line."""
        with self.changed:
            self.log(pod).lines.append((time, text))
            self.changed.notify_all()

    # -- answers -------------------------------------------------------------------------------

    def items(self, kind: str, query: dict[str, str]) -> list[Listed]:
        wanted = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if part)
        with self.changed:
            return [
                item
                for (each, _), item in sorted(self._objects.items())
                if each == kind and wanted.items() <= item["metadata"].get("labels", {}).items()
            ]

    def listing(self, kind: str, query: dict[str, str]) -> Listed:
        with self.changed:
            items, version = self.items(kind, query), str(self._version)
        first = int(query.get("continue", "0"))
        last = first + int(query.get("limit", "500"))
        metadata = {"resourceVersion": version}
        if last < len(items):
            metadata["continue"] = str(last)
        return {"kind": f"{kind}List", "metadata": metadata, "items": items[first:last]}

    def watch(self, kind: str, query: dict[str, str]) -> Iterator[bytes]:
        """Lines of a watch."""
        version = int(query["resourceVersion"])
        if version < self._oldest:
            yield _event("ERROR", status(410, f"too old resource version: {version}", "Expired"))
            return
        wanted = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if part)
        until = time.monotonic() + min(self.watch_s, int(query["timeoutSeconds"]))
        while True:
            with self.changed:
                new = [each for each in self._history if each[0] > version]
                if not new and not self.changed.wait_for(
                    partial(self._has_news, version), until - time.monotonic()
                ):
                    break
                new = [each for each in self._history if each[0] > version]
                expired = version < self._oldest
            if expired:
                yield _event(
                    "ERROR", status(410, f"too old resource version: {version}", "Expired")
                )
                return
            for number, each, what, item in new:
                version = number
                if each == kind and wanted.items() <= item["metadata"].get("labels", {}).items():
                    yield _event(what, item)
            if self.closing or time.monotonic() > until:
                break
        if query.get("allowWatchBookmarks") == "true":
            yield _event("BOOKMARK", {"kind": kind, "metadata": {"resourceVersion": str(version)}})

    def _has_news(self, version: int) -> bool:
        return self.closing or version < self._oldest or self._version > version

    def _has_lines(self, log: Log, number: int) -> bool:
        return self.closing or log.ended or len(log.lines) > number

    def patch(self, asked: Asked, kind: str, name: str) -> tuple[int, Listed]:
        """Server-side apply, or a merge patch."""
        with self.changed:
            before = self._objects.get((kind, name))
            body = asked.body
            if "apply-patch" in asked.content_type:
                if not asked.query.get("fieldManager"):
                    return 400, status(400, "fieldManager is required for apply patch")
                if (refused := no_object(kind, name, body)) is not None:
                    return 500, refused
                owned = self._owned_by_others(kind, name, body)
                if asked.query.get("force") != "true" and owned:
                    return 409, conflict(owned)
            elif before is None:
                return 404, missing(kind, name)
            item = merged(before or {}, body)
            if kind == "RoleBinding" and ("Role", body["roleRef"]["name"]) not in self._objects:
                # Of a caller who is no administrator the rules of the Role are looked at.
                return 404, missing("Role", body["roleRef"]["name"])
            if kind == "TrainJob" and ("TrainingRuntime", name) not in self._objects:
                text = "specified trainingRuntime must be created before the TrainJob is created"
                return 403, status(403, f"admission webhook denied the request: {text}")
            if kind == "Pod" and before is None:
                refused = refused_pod(name, item["spec"], lambda *key: key in self._objects)
                if refused is not None:
                    return 403, refused
            refused = refused_update(kind, name, before, item) if before is not None else None
            if refused is not None:
                return 422, refused
            if asked.query.get("dryRun") == "All":
                return 200, item
            item = self.put(kind, item)
            self._take_over(kind, name, asked)
        self.on_patch(kind, item)
        return 200 if before is not None else 201, item

    def _take_over(self, kind: str, name: str, asked: Asked) -> None:
        """What a patch sets is its manager's, also against the same manager that applies."""
        owners = self.managers.setdefault((kind, name), {})
        if "apply-patch" not in asked.content_type:
            manager = asked.query.get("fieldManager", "unknown")
            owners |= dict.fromkeys(leaves(asked.body), manager)
        elif asked.query.get("force") == "true":
            for path in leaves(asked.body):
                owners.pop(path, None)

    def _owned_by_others(self, kind: str, name: str, body: Listed) -> dict[str, str]:
        before = self._objects.get((kind, name))
        if before is None:
            return {}
        return {
            path: manager
            for path, manager in self.managers.get((kind, name), {}).items()
            if _at(body, path) not in (None, _at(before, path))
        }

    def create(self, asked: Asked, kind: str) -> tuple[int, Listed]:
        """A new object, by POST."""
        name = asked.body["metadata"].get("name") or (
            f"{asked.body['metadata']['generateName']}{uuid4().hex[:5]}"
        )
        with self.changed:
            if (kind, name) in self._objects:
                return 409, status(409, f'{PLURALS[kind]} "{name}" already exists', "AlreadyExists")
            item = {**asked.body, "metadata": {**asked.body["metadata"], "name": name}}
            return 201, item if asked.query.get("dryRun") == "All" else self.put(kind, item)

    def delete_namespace(self, name: str) -> None:
        """As the controller: at once, unless a pod is in it, which then holds it for ever."""
        with self.changed:
            if not any(kind == "Pod" for kind, _ in self._objects):
                self.namespaces.remove(name)

    def delete(self, asked: Asked, kind: str, name: str) -> tuple[int, Listed]:
        """Delete an object; the bodies of a real one's answers are not read by any client here."""
        with self.changed:
            item = self._objects.get((kind, name))
            if item is None:
                return 404, missing(kind, name)
            self.remove(kind, name)
        self.on_delete(kind, item)
        return 200, {"kind": "Status", "status": "Success"}

    def read_log(self, pod: str, query: dict[str, str]) -> Iterator[bytes]:
        """Pieces of a log; raises ConnectionError where it is cut."""
        log = self.log(f"{pod}/previous" if query.get("previous") == "true" else pod)
        cut = log.cuts.pop(0) if log.cuts else None
        sent, number = 0, 0
        while True:
            with self.changed:
                lines = log.lines[number:]
                number += len(lines)
                ended = log.ended or query.get("follow") != "true" or self.closing
            since = query.get("sinceTime")
            chosen = [line for line in lines if since is None or _when(line[0]) >= _when(since)]
            if "tailLines" in query:
                chosen = chosen[-int(query["tailLines"]) or len(chosen) :]
            data = b"".join(f"{at} {text}\n".encode() for at, text in chosen)
            if ended:
                data += log.tail
            if cut is not None and sent + len(data) >= cut:
                yield data[: cut - sent]
                raise ConnectionError
            if data:
                # In two pieces: chunks are no lines.
                yield from filter(None, (data[: len(data) // 2], data[len(data) // 2 :]))
            sent += len(data)
            if ended:
                return
            with self.changed:
                self.changed.wait_for(partial(self._has_lines, log, number), 5)


def _when(text: str) -> datetime:
    # Nanoseconds are more than Python reads.
    head, _, rest = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{head}.{(rest or '0')[:6].ljust(6, '0')}+00:00")


def _at(item: Listed, path: str) -> Any:
    found: Any = item
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _event(kind: str, item: Listed) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _target(path: str) -> tuple[str | None, str, str, str]:
    """(namespace, kind, name, what is below it) of a path."""
    words = path.strip("/").split("/")
    words = words[2:] if words[0] == "api" else words[3:]
    namespace = None
    if words[0] == "namespaces" and len(words) > 2:
        namespace, words = words[1], words[2:]
    name, below = ([*words[1:], "", ""])[:2]
    return namespace, KINDS[words[0]], name, below


@contextmanager
def serve_cluster() -> Iterator[KubernetesCluster]:
    """A server, for the length of a block."""
    cluster = KubernetesCluster()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # an answer is two writes, the second of which would wait

        def _handle(self) -> None:
            parts = urlparse(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            content_type = self.headers.get("Content-Type", "")
            accept = self.headers.get("Accept", "")
            asked = Asked(self.command, parts.path, query, body, content_type, accept)
            with cluster.changed:
                cluster.asked.append(asked)
                refused = next((each for each in cluster.refusals if each.fits(asked)), None)
                if refused is not None:
                    cluster.refusals.remove(refused)
            if refused is not None and refused.cut:
                self.close_connection = True
                return
            if refused is not None and refused.empty:
                self.send_response(refused.code)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if refused is not None:
                body = status(refused.code, refused.message)
                self._answer(refused.code, body, refused.retry_after)
                return
            self._serve(asked, *_target(parts.path))

        def _serve(
            self, asked: Asked, namespace: str | None, kind: str, name: str, below: str
        ) -> None:
            query = asked.query
            there = namespace is None or namespace in cluster.namespaces
            if kind == "Namespace":
                self._namespace(name, is_dry_run=query.get("dryRun") == "All")
            elif asked.method in ("PATCH", "POST") and not there:
                self._answer(404, missing("Namespace", str(namespace)))
            elif asked.method == "POST":
                self._answer(*cluster.create(asked, kind))
            elif not name and not there:
                self._answer(200, {"kind": f"{kind}List", "metadata": {}, "items": []})
            elif below == "log" and cluster.get("Pod", name) is None:
                self._answer(404, missing("Pod", name))
            elif below == "log":
                self._stream(cluster.read_log(name, query))
            elif query.get("watch") in ("true", "True"):
                expired = int(query["resourceVersion"]) < cluster._oldest
                if expired and cluster.expired_by_status:
                    self._answer(410, status(410, "too old resource version", "Expired"))
                else:
                    self._stream(cluster.watch(kind, query))
            elif asked.method == "PATCH":
                warning = cluster.warnings.get(kind, "")
                self._answer(*cluster.patch(asked, kind, name), warning=warning)
            elif not name:
                self._answer(200, cluster.listing(kind, query))
            elif asked.method == "DELETE":
                self._answer(*cluster.delete(asked, kind, name))
            elif cluster.get(kind, name) is None or not there:
                self._answer(404, missing(kind, name))
            else:
                self._answer(200, cluster.get(kind, name))

        def _namespace(self, name: str, *, is_dry_run: bool) -> None:
            if name not in cluster.namespaces:
                self._answer(404, missing("Namespace", name))
                return
            if self.command == "DELETE" and not is_dry_run:
                cluster.delete_namespace(name)
            self._answer(200, {"kind": "Namespace", "metadata": {"name": name}})

        do_GET = do_PATCH = do_POST = do_DELETE = _handle  # noqa: N815

        def _answer(self, code: int, body: Any, retry_after: str = "", warning: str = "") -> None:
            text = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            if retry_after:
                self.send_header("Retry-After", retry_after)
            if warning:
                escaped = warning.replace('"', '\\"')
                self.send_header("Warning", f'299 - "{escaped}"')
            self.end_headers()
            self.wfile.write(text)

        def _stream(self, pieces: Iterator[bytes]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for piece in pieces:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:  # cut, or the client has left
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """The client has left in the middle, as one that is stopped does."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    cluster.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield cluster
    finally:
        with cluster.changed:
            cluster.closing = True
            cluster.changed.notify_all()
        server.shutdown()
        thread.join()
        server.server_close()
