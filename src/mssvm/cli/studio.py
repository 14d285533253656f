"""``mssvm studio``: a local page to label a few sites and see the predictions for all others."""

from __future__ import annotations

import warnings
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mssvm.annotators import Annotators
from mssvm.core.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from mssvm.studio.project import Project

HOST = "127.0.0.1"


def studio(
    place: Annotated[
        Path | None, typer.Argument(help="Folder of pictures, a picture, or a file of sentences or series.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    write: Annotated[
        bool, typer.Option("--write", help="Train on the marks, write files beside the data, stop.")
    ] = False,
) -> None:
    """Label a little, and the model labels the rest: a local page for pictures, sentences and series.

    Example: mssvm studio photographs/

    Example: mssvm studio sentences.txt

    Without an argument it opens an example in the folder studio-example. Every mark is saved in a journal beside the
    data.
    """
    project = open_project(place if place is not None else write_example(Path("studio-example")))
    if write:
        write_files(project)
        return
    serve(project, port, browser)


def open_project(place: Path) -> Project:
    """The project of a folder or file."""
    from mssvm.data.readers.images import stem_of
    from mssvm.studio.pictures import PictureProject
    from mssvm.studio.sequences import SequenceProject

    if not place.exists():
        raise InputError(f"{place} cannot be read: no such file or directory; check the path.")
    if place.is_dir() or stem_of(place) is not None:
        return PictureProject(place)
    return SequenceProject(place)


def write_files(project: Project) -> None:
    """Train on all marks from the start, and write labels, predictions and the model."""
    data = project.training_set()
    if data is None:
        raise InputError("there are marks of less than two classes; mark more in mssvm studio first.")
    model = project.new_model().set_params(classes=data.classes)
    if data.votes:
        model.set_params(annotators=Annotators())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data.X, data.y)
    answers = {item: project.predict(model, item) for item in range(project.n_items)}
    written = project.export(model, answers)
    model.save(project.home.parent / "model.safetensors")
    print(model.diagnose())
    print(f"Wrote {len(written)} files and model.safetensors to {project.home.parent}")


def serve(project: Project, port: int, browser: bool) -> None:
    """Serve the page until Ctrl-C."""
    try:
        import uvicorn
    except ImportError:
        raise UnsupportedError('the studio needs starlette and uvicorn; run pip install "mssvm[studio]".') from None
    from mssvm.studio.server import Studio

    config: Any = uvicorn.Config("", host=HOST, port=port, log_level="warning", timeout_graceful_shutdown=1)
    try:
        socket = config.bind_socket()
    except SystemExit:
        raise InputError(f"port {port} is taken; name another one, or 0 for any.") from None
    socket.listen()  # so that a browser that connects before the server runs waits instead of failing
    number = socket.getsockname()[1]
    made = Studio(project, (f"{HOST}:{number}", f"localhost:{number}"))
    config.app = made.app
    address = f"http://{HOST}:{number}/?token={made.token}"
    print(f"Studio: {address}\nCtrl-C ends it; every mark is on disk.", flush=True)
    if browser:
        webbrowser.open(address)
    uvicorn.Server(config).run(sockets=[socket])


def write_example(folder: Path) -> Path:
    """A folder with embedded landscapes, which are drawn by a program."""
    from mssvm.data.embedded import landscape
    from mssvm.data.readers import png

    images = folder / "images"
    if not images.is_dir():
        images.mkdir(parents=True)
        for k in range(3):
            (images / f"landscape-{k + 1}.png").write_bytes(png.encode(landscape(200, 300, seed=k).pixels))
    return folder
