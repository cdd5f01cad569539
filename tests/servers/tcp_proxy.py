"""A TCP proxy that counts round trips, loses replies, stands still, and can end TLS."""

import contextlib
import select
import socket
import ssl
import threading

_AT_ONCE = 1 << 20  # bytes
_PAUSE = 0.05  # seconds: a client between two pieces may have to wait for the processor


class TCPProxy:
    """Passes bytes between its port and a server's on loopback, and with `tls` speaks TLS.

    After `pause` seconds without a byte, a client's request is taken to be whole: `trips` counts
    how often clients began to send after the server had sent. If `lose_next_reply` is set, the
    server's next reply is thrown away, the connection is cut, and it is reset.
    """

    def __init__(
        self, target: int, tls: ssl.SSLContext | None = None, pause: float = _PAUSE
    ) -> None:
        self.trips = 0
        self.lose_next_reply = False
        self._pause = pause
        self._flowing = threading.Event()
        self._flowing.set()
        self._target = target
        self._tls = tls
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def stall(self) -> None:
        """Pass nothing on, either way; connections stay open, and new ones are accepted."""
        self._flowing.clear()

    def resume(self) -> None:
        """Pass on what was held back, and all that follows."""
        self._flowing.set()

    def close(self) -> None:
        self._cut(self._listener, *self._sockets)
        self.resume()
        for thread in self._threads:
            thread.join()

    def _start(self, target, *arguments) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        self._sockets |= {client, server}
        turn = ["server"]
        self._start(self._requests, client, server, turn)
        self._replies(client, server, turn)

    def _requests(self, client, server, turn) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := self._burst(client):
                self._flowing.wait()
                if turn[0] == "server":
                    turn[0] = "client"
                    self.trips += 1
                server.sendall(data)
        self._cut(client, server)

    def _burst(self, client: socket.socket) -> bytes:
        """What the client sends without a pause: a pipeline comes in several pieces."""
        data = client.recv(_AT_ONCE)
        while data and select.select([client], [], [], self._pause)[0]:
            more = client.recv(_AT_ONCE)
            if not more:
                break
            data += more
        return data

    def _replies(self, client, server, turn) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_AT_ONCE):
                self._flowing.wait()
                turn[0] = "server"
                if self.lose_next_reply:
                    self.lose_next_reply = False
                    break
                client.sendall(data)
        self._cut(client, server)

    def _cut(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
