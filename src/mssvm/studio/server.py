"""The studio over HTTP: loopback only, a token in every request, nothing outside of the project.

GET  /                          the page                      GET  /api/events     state, whenever it changes
GET  /api/items/N               an item to draw               POST /api/events     a mark, undo, redo, a class
GET  /api/items/N/picture       the picture itself            POST /api/shown      which item is shown
GET  /api/items/N/labels        prediction                    GET  /api/suggest    where to label next
GET  /api/items/N/uncertainty   how unsure it is              POST /api/export     files beside the data
GET  /api/items/N/disputed      where people disagree (pictures)
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mssvm.core.errors import MssvmError
from mssvm.data.readers import png
from mssvm.studio.learner import Learner
from mssvm.studio.pictures import PictureProject
from mssvm.studio.project import Project

STATIC = Path(__file__).parent / "static"
PAGES = {"studio.css": "text/css", "main.js": "text/javascript", "pictures.js": "text/javascript"}
PAGES |= {"api.js": "text/javascript", "sequences.js": "text/javascript"}
SHOWN_BY_BROWSERS = (".png", ".jpg", ".jpeg", ".bmp")
LARGEST_BODY = 1 << 20  # bytes of a request
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
Handler = Callable[[Request], Awaitable[Response]]


class Studio:
    """A project, its learner and its token, as an ASGI application (``app``)."""

    def __init__(self, project: Project, hosts: tuple[str, ...]) -> None:
        self.project = project
        self.token = secrets.token_urlsafe(16)
        self.hosts = hosts
        self.learner = Learner(project, self._notify)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[asyncio.Event] = set()
        self.app = Starlette(routes=self._routes(), lifespan=self._lifespan)

    def _routes(self) -> list[Route]:
        return [
            Route("/", self._guarded(self._page)),
            Route("/static/{name}", self._static),
            Route("/api/events", self._guarded(self._listen)),
            Route("/api/events", self._guarded(self._record), methods=["POST"]),
            Route("/api/shown", self._guarded(self._shown), methods=["POST"]),
            Route("/api/suggest", self._guarded(self._suggest)),
            Route("/api/export", self._guarded(self._export), methods=["POST"]),
            Route("/api/items/{item:int}", self._guarded(self._item)),
            Route("/api/items/{item:int}/picture", self._guarded(self._picture)),
            Route("/api/items/{item:int}/labels", self._guarded(self._labels)),
            Route("/api/items/{item:int}/uncertainty", self._guarded(self._uncertainty)),
            Route("/api/items/{item:int}/disputed", self._guarded(self._disputed)),
        ]

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self.learner.start()
        yield
        self.learner.stop()

    # ------------------------------------------------------------------------------------------------ guards

    def _guarded(self, handler: Handler) -> Handler:
        """Only for the page itself: the right host, origin and token. Errors are one sentence."""

        async def guarded(request: Request) -> Response:
            self._check(request)
            try:
                response = await handler(request)
            except MssvmError as error:
                response = JSONResponse({"error": str(error)}, status_code=400)
            response.headers.update(HEADERS)
            return response

        return guarded

    def _check(self, request: Request) -> None:
        host = request.headers.get("host", "")
        if host not in self.hosts:
            raise HTTPException(403, "this address is not the studio's.")
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            raise HTTPException(403, "another page may not use the studio.")
        given = request.headers.get("x-studio-token") or request.query_params.get("token") or ""
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            raise HTTPException(403, "the address lacks the token; open the one that the command printed.")

    async def _body(self, request: Request) -> dict[str, Any]:
        """The JSON object of a request, of bounded size."""
        content = bytearray()
        async for piece in request.stream():
            content += piece
            if len(content) > LARGEST_BODY:
                raise HTTPException(413, f"a request has at most {LARGEST_BODY} bytes.")
        try:
            value = json.loads(bytes(content))
        except ValueError:
            raise HTTPException(400, "a request is one JSON object.") from None
        if not isinstance(value, dict):
            raise HTTPException(400, "a request is one JSON object.")
        return value

    def _item_of(self, request: Request) -> int:
        item = int(request.path_params["item"])
        if not 0 <= item < self.project.n_items:
            raise HTTPException(404, f"there is no item {item}.")
        return item

    # ------------------------------------------------------------------------------------------------ the page

    async def _page(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in PAGES:
            raise HTTPException(404)
        return FileResponse(STATIC / name, media_type=PAGES[name], headers=HEADERS)

    # ------------------------------------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """Everything that the page shows beside the item itself."""
        project = self.project
        learner = self.learner
        with project.lock:
            return {
                "kind": project.kind,
                "version": project.version,
                "items": project.n_items,
                "classes": [asdict(info) for info in project.classes],
                "marks": len(project.history.done),
                "undone": len(project.history.undone),
                "answered": {str(item): version for item, (version, _) in learner.answers.items()},
                "annotators": learner.annotators(),
                "disputed": project.disputed_items(),
                "progress": asdict(learner.progress),
                "recipe": project.recipe(),
            }

    def _notify(self) -> None:
        """Tell all open pages, from any thread, that the state has changed."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake_listeners)

    def _wake_listeners(self) -> None:
        for listener in self._listeners:
            listener.set()

    async def _listen(self, request: Request) -> Response:
        changed = asyncio.Event()
        changed.set()
        self._listeners.add(changed)

        async def states() -> AsyncIterator[str]:
            try:
                while True:
                    await changed.wait()
                    changed.clear()
                    yield f"data: {json.dumps(self.state())}\n\n"
            finally:
                self._listeners.discard(changed)

        return StreamingResponse(states(), media_type="text/event-stream")

    async def _record(self, request: Request) -> Response:
        recorded = await asyncio.to_thread(self.project.record, await self._body(request))
        if recorded is not None:
            self.learner.compare(recorded)
            self.learner.wake()
            self._notify()
        return JSONResponse({"version": self.project.version, "changed": recorded is not None})

    async def _shown(self, request: Request) -> Response:
        item = (await self._body(request)).get("item")
        if type(item) is not int or not 0 <= item < self.project.n_items:
            raise HTTPException(404, f"there is no item {item!r}.")
        self.learner.show(item)
        return JSONResponse({"item": item})

    async def _suggest(self, request: Request) -> Response:
        model = self.learner.model
        if model is None:
            return JSONResponse({"error": "nothing is learned yet; mark two classes first."}, status_code=400)
        return JSONResponse(await asyncio.to_thread(self.project.suggest, model))

    async def _export(self, request: Request) -> Response:
        answers = {item: answer for item, (_, answer) in self.learner.answers.items()}
        written = await asyncio.to_thread(self.project.export, self.learner.model, answers)
        if self.learner.model is not None:
            path = self.project.home.parent / "model.safetensors"
            await asyncio.to_thread(self.learner.model.save, path)
            written.append(path)
        return JSONResponse({"files": [path.name for path in written]})

    # ------------------------------------------------------------------------------------------------ items

    async def _item(self, request: Request) -> Response:
        item = self._item_of(request)
        with self.project.lock:
            described = self.project.describe(item)
            described["events"] = self.project.marks(item)
            described["version"] = self.project.version
        return JSONResponse(described)

    async def _picture(self, request: Request) -> Response:
        if not isinstance(self.project, PictureProject):
            raise HTTPException(404)
        item = self._item_of(request)
        path = self.project.paths[item]
        if path.suffix.lower() in SHOWN_BY_BROWSERS:
            return FileResponse(path)
        pixels = await asyncio.to_thread(self.project.pixels, item)
        return Response(png.encode(pixels[..., :3]), media_type="image/png")

    async def _labels(self, request: Request) -> Response:
        answer = self._answer(request)
        if not isinstance(self.project, PictureProject):
            return JSONResponse({"labels": answer.labels})
        palette = [list(bytes.fromhex(info.colour[1:])) for info in self.project.classes]
        return Response(png.encode(answer.labels, np.array(palette, dtype=np.uint8)), media_type="image/png")

    async def _uncertainty(self, request: Request) -> Response:
        answer = self._answer(request)
        if not isinstance(self.project, PictureProject):
            return JSONResponse({"uncertainty": answer.uncertainty.round(4).tolist()})
        return Response(png.encode(np.round(255.0 * answer.uncertainty)), media_type="image/png")

    async def _disputed(self, request: Request) -> Response:
        if not isinstance(self.project, PictureProject):
            raise HTTPException(404)
        mask = await asyncio.to_thread(self.project.disputed_mask, self._item_of(request))
        return Response(png.encode(mask), media_type="image/png")

    def _answer(self, request: Request) -> Any:
        known = self.learner.answers.get(self._item_of(request))
        if known is None:
            raise HTTPException(404, "there is no prediction yet.")
        return known[1]
