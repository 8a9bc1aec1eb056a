"""The yardstick: trio and httptools answering a fixed body, and nothing else. No node on this stack can be faster."""

from __future__ import annotations

import socket
import sys

import httptools
import trio

BODY = b'{"ok":true,"status":"scheduled","queue":"reminders","timerKey":"order-9137"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
RECEIVE_BYTES = 64 * 1024


class Requests:
    """Counts the requests that a parser completes."""

    def __init__(self) -> None:
        self.complete = 0

    def on_message_complete(self) -> None:
        self.complete += 1


async def serve_connection(connection: trio.SocketStream) -> None:
    """Answers every request on one connection until the client closes it."""
    sock = connection.socket
    requests = Requests()
    parser = httptools.HttpRequestParser(requests)
    try:
        while data := await sock.recv(RECEIVE_BYTES):
            parser.feed_data(data)
            if requests.complete:
                answers, requests.complete = ANSWER * requests.complete, 0
                await sock.send(answers)
    except ConnectionError:
        return  # a load that ends may reset its connections


async def serve(listening: socket.socket) -> None:
    """Serves until cancelled."""
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    await trio.serve_listeners(serve_connection, [listener])


def main() -> None:
    """Listens on the port that the first argument names, until it is killed."""
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=512)
    trio.run(serve, listening)


if __name__ == "__main__":
    main()
