"""A small HTTP/1.1 client on asyncio: one request a connection, and every byte in the caller's hands.

The load tests need what comfortable clients hide: leaving in the middle, reading slowly, or sending
nonsense. It also takes little of the machine that it shares with the server.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

PIECE = 64 << 10


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int


class Reply:
    """The answer to one request, read as far as the caller likes."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]) -> None:
        self._reader = reader
        self.status = status
        self.headers = headers

    async def body(self) -> bytes:
        """All of it."""
        return b"".join([piece async for piece in self.pieces()])

    async def pieces(self) -> AsyncIterator[bytes]:
        """Parts of the body as they come. Raises EOFError if the connection ends before the body."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self._line()).split(b";")[0], 16):
                yield await self._reader.readexactly(size)
                await self._line()
            await self._line()
        elif "content-length" in self.headers:
            yield await self._reader.readexactly(int(self.headers["content-length"]))
        else:
            while piece := await self._reader.read(PIECE):
                yield piece

    async def events(self) -> AsyncIterator[str]:
        """What server-sent events hold, one text each."""
        rest = b""
        async for piece in self.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip().decode()

    async def _line(self) -> bytes:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the connection ended in the middle of an answer")
        return line.strip()


@asynccontextmanager
async def send(
    address: Address,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    receive_buffer: int | None = None,
) -> AsyncIterator[Reply]:
    """Send a request and read the head of its answer. Leaving the block closes the connection.

    receive_buffer: bytes that the kernel and this side hold at most of what is not read yet, so that a
    slow reader is felt by the server.
    """
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sender = None
    writer = None
    try:
        await asyncio.get_running_loop().sock_connect(connection, (address.host, address.port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=receive_buffer or PIECE)
        sender = asyncio.create_task(_write(writer, address, method, path, body))
        # A server may answer before it has read everything.
        yield await _head(reader)
    finally:
        if sender is not None:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        if writer is not None:
            writer.transport.abort()
        connection.close()


async def get(address: Address, path: str) -> tuple[int, bytes]:
    """Status and body."""
    async with send(address, "GET", path) as reply:
        return reply.status, await reply.body()


def encode(value: Any) -> bytes:
    """A body of JSON."""
    return json.dumps(value).encode()


async def _write(
    writer: asyncio.StreamWriter, address: Address, method: str, path: str, body: bytes | None
) -> None:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address.host}:{address.port}", "Connection: close"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    for start in range(0, len(body or b""), PIECE):
        assert body is not None
        writer.write(body[start : start + PIECE])
        await writer.drain()


async def _head(reader: asyncio.StreamReader) -> Reply:
    first = await reader.readline()
    if not first.startswith(b"HTTP/1."):
        raise EOFError("the connection ended without an answer")
    headers: dict[str, str] = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return Reply(reader, int(first.split()[1]), headers)
