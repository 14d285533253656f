"""A studio that answers on a port of its own, for tests."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import uvicorn

from mssvm.cli.studio import HOST, open_project
from mssvm.data.readers import png
from mssvm.studio.server import Studio


class Client:
    """Requests with the token, as the page makes them."""

    def __init__(self, studio: Studio, port: int) -> None:
        self.studio = studio
        self.base = f"http://{HOST}:{port}"

    def request(
        self, path: str, body: object = None, headers: dict[str, str] | None = None, raw: bytes | None = None
    ) -> tuple[int, bytes]:
        """Status and content."""
        content = raw
        if body is not None:
            content = json.dumps(body).encode()
        sent = {"x-studio-token": self.studio.token} if headers is None else headers
        try:
            with urlopen(Request(self.base + path, content, sent), timeout=60) as response:
                return response.status, response.read()
        except HTTPError as error:
            return error.code, error.read()

    def json(self, path: str, body: object = None) -> Any:
        status, content = self.request(path, body)
        assert status == 200, content
        return json.loads(content)

    def learned(self, item: int = 0, seconds: float = 90.0) -> None:
        """Wait until the model has answered for the item with all marks."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.studio.state()
            if state["answered"].get(str(item)) == state["version"] and not state["progress"]["doing"]:
                return
            time.sleep(0.02)
        raise AssertionError(self.studio.state())


@contextmanager
def serving(place: Path) -> Iterator[Client]:
    config: Any = uvicorn.Config("", host=HOST, port=0, log_level="warning", timeout_graceful_shutdown=1)
    socket = config.bind_socket()
    port = socket.getsockname()[1]
    studio = Studio(open_project(place), (f"{HOST}:{port}",))
    config.app = studio.app
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Client(studio, port)
    finally:
        server.should_exit = True
        thread.join(timeout=20)


def two_colours(folder: Path, height: int = 40, width: int = 60) -> Path:
    """A folder with one picture: red on the left, blue on the right."""
    rng = np.random.default_rng(0)
    pixels = np.zeros((height, width, 3))
    pixels[:, : width // 2] = (200, 60, 60)
    pixels[:, width // 2 :] = (60, 60, 200)
    noisy = np.clip(pixels + rng.normal(0, 20, pixels.shape), 0, 255)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "two.png").write_bytes(png.encode(noisy))
    return folder


def stroke(label: int | None, *points: tuple[float, float], radius: float = 3.0, item: int = 0) -> dict[str, Any]:
    return {"kind": "mark", "item": item, "class": label, "radius": radius, "points": [list(p) for p in points]}


LEFT = stroke(0, (10, 10), (10, 30))
RIGHT = stroke(1, (50, 10), (50, 30))
