"""An OpenAI-compatible HTTP server on a real socket that does as a script says."""

import contextlib
import hashlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any

from servers.redis_server import hold

Reply = Callable[[dict[str, Any]], str]
_NONE: Mapping[str, str] = MappingProxyType({})
_USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
_HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}


def hash_of_prompt(body: dict[str, Any]) -> str:
    """A reply in one number: a text of several words that nobody has read would be no notes."""
    prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
    return f"memory {int(hashlib.sha256(prompt.encode()).hexdigest(), 16) % 10**16:016}"


def event(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return f"data: {json.dumps({**_HEAD, 'choices': [choice]})}\n\n".encode()


class _HTTPServer(ThreadingHTTPServer):
    request_queue_size = 512  # the 5 of the base class resets connections that come together


class OpenAIServer:
    """Answers chat completions with `reply(request)`, except where `script` says otherwise.

    A behaviour in the script is "ok", an HTTP status, "drop" (the connection is closed), "reset"
    (it is broken off), "cut" (it is closed within the body), "empty", "malformed", "hang" (nothing
    is sent until the server closes), bytes (sent as they are, as JSON, or as events to a streaming
    request), or a dict: fields of the completion's choice, with "status" and "headers" for errors.

    It keeps the bodies (`requests`), `paths` and `headers` of what it was asked, and how often it
    was `asked` for its `models`, with the status `listing`; `between` is called between the words
    of a reply that is streamed.
    """

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.script: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.models: list[dict[str, Any]] = [{"id": "small", "max_model_len": 8192}]
        self.between: Callable[[], None] = lambda: None
        self.listing = 200
        self.asked = 0
        self.accepted = 0
        self._closing = threading.Event()
        self._connections: set[socket.socket] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each reply takes 40 ms

            def setup(self) -> None:
                super().setup()
                server._connections.add(self.connection)
                server.accepted += 1

            def finish(self) -> None:
                server._connections.discard(self.connection)
                with contextlib.suppress(OSError):  # it was cut
                    super().finish()

            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    super().handle()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.requests.append(body)
                server.paths.append(self.path)
                server.headers.append({name.lower(): value for name, value in self.headers.items()})
                behaviour = server.script.pop(0) if server.script else "ok"
                server._behave(self, body, behaviour)

            def do_GET(self) -> None:
                server.asked += 1
                found = {"object": "list", "data": server.models}
                server._send(self, found, server.listing)

            def log_message(self, *_: Any) -> None:
                pass

        self._handler = Handler
        self.port = 0
        self.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Listen, after `kill` on the same port as before."""
        self._http = _HTTPServer(("127.0.0.1", self.port), self._handler)
        self._http.daemon_threads = True
        self.port = self._http.server_port
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def kill(self) -> None:
        """Cut all connections and refuse new ones, as when the process is killed."""
        self._http.shutdown()
        self._http.server_close()
        hold(self.port)
        self._thread.join()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _behave(self, handler, body: dict[str, Any], behaviour: Any) -> None:
        if behaviour in ("drop", "reset"):
            if behaviour == "reset":  # what is left to send is thrown away, and the peer told
                linger = struct.pack("ii", 1, 0)
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            handler.close_connection = True
            handler.connection.close()
            return
        if behaviour == "hang":
            self._closing.wait()
            handler.close_connection = True
            return
        if isinstance(behaviour, bytes):
            kind = "text/event-stream" if body.get("stream") else "application/json"
            self._send(handler, behaviour, headers={"content-type": kind})
            return
        if isinstance(behaviour, int):
            behaviour = {"status": behaviour}
        if isinstance(behaviour, dict) and "status" in behaviour:
            error = behaviour.get("error", {"message": "scripted", "type": "scripted"})
            headers = behaviour.get("headers", {})
            self._send(handler, {"error": error}, behaviour["status"], headers)
            return
        text = "" if behaviour == "empty" else self.reply(body)
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        if isinstance(behaviour, dict):
            choice = {**choice, **behaviour}
        if body.get("stream"):
            self._stream(handler, choice)
            return
        head = {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"]}
        completion = {**head, "choices": [{"index": 0, **choice}], "usage": _USAGE}
        payload = json.dumps(completion).encode()
        if behaviour == "malformed":
            payload = payload[: len(payload) // 2]
        self._send(handler, payload, cut=behaviour == "cut")

    def _send(self, handler, body: Any, status: int = 200, headers=_NONE, *, cut=False) -> None:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        length = {"content-length": str(len(payload)), "content-type": "application/json"}
        for name, value in {**length, **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(payload[: len(payload) // 2] if cut else payload)
        if cut:
            handler.close_connection = True
            handler.wfile.flush()
            handler.connection.close()

    def _stream(self, handler: BaseHTTPRequestHandler, choice: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("connection", "close")
        handler.end_headers()
        message = choice["message"]
        first, *words = message["content"].split(" ")
        deltas = [{"content": first}, *({"content": f" {word}"} for word in words)]
        if "reasoning_content" in message:
            deltas.insert(0, {"reasoning_content": message["reasoning_content"]})
        for number, delta in enumerate(deltas):
            if number:
                self.between()
            handler.wfile.write(event(delta))
        handler.wfile.write(event({}, choice["finish_reason"]))
        last = {**_HEAD, "choices": [], "usage": _USAGE}
        handler.wfile.write(f"data: {json.dumps(last)}\n\n".encode())
        handler.wfile.write(b"data: [DONE]\n\n")
        handler.close_connection = True
