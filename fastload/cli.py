"""The command line: one thin command per job; each imports what it needs when it runs."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from fastload import __version__

if TYPE_CHECKING:
    from fastload.report.report import Report

__all__ = ["app", "main"]

USER_ERROR, INTERRUPTED = 2, 130
STDOUT, STDERR = 1, 2  # file descriptors, which other processes inherit
NOT_DRAWN = (
    "there is no training loop to plot: --plot takes a script, or a factory that returns a loader and a function that "
    "trains on a batch"
)


class _Commands(TyperGroup):
    """Commands that end at Ctrl-C with one line and exit code 130, as shells have it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("fastload: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands, name="fastload", no_args_is_help=True, add_completion=False, rich_markup_mode="markdown"
)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print an error that the user can correct as one line, and exit with code 2."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        typer.echo(f"fastload: {error}", err=True)
        raise typer.Exit(USER_ERROR) from None


@contextmanager
def printed_as_errors() -> Iterator[None]:
    """A context in which what a script prints goes to stderr, and so does what its workers and programs print."""
    sys.stdout.flush()
    kept = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, STDOUT)
        os.close(kept)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fastload {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One line around the PyTorch DataLoader you already have."""


@app.command()
def demo(
    *,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ...; default: the accelerator, else cpu.")
    ] = None,
    model: Annotated[str, typer.Option(help="A torchvision classification model.")] = "resnet18",
    epochs: Annotated[int | None, typer.Option(min=1, help="Default: 3 on a CPU, else 5.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="A folder with train/ and val/, or with one folder of images a class.")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(min=1, help="How many to make, or at most to use of --data; default: 600 on a CPU, else 4,096."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=2, help="Default: 32 on a CPU, else 128.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Worker processes; default: cores less one.")] = None,
) -> None:
    """Train a model on photographs by the plain loop, through PrefetchLoader and through offload, and compare."""
    from fastload import demo as demonstration  # noqa: PLC0415

    console = Console()
    with one_line_errors(), console.status("finding the photographs"):
        settings = demonstration.prepare(
            device=device,
            model=model,
            epochs=epochs,
            data=data,
            images=images,
            batch_size=batch_size,
            workers=workers,
        )
    demonstration.run(settings, console)


@app.command()
def sample_data(
    folder: Annotated[Path, typer.Argument(help="A folder that is empty or does not exist yet.")],
    images: Annotated[int, typer.Option(help="How many files, training and held-out.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the random crops that are written.")] = 0,
) -> None:
    """Write JPEG photographs to train on, in an ImageFolder layout."""
    from fastload import data  # noqa: PLC0415

    with one_line_errors(), Console().status("cutting photographs"):
        data.sample_data(folder, images, seed=seed)
    typer.echo(f"{images} images in {folder / 'train'} and {folder / 'val'}")


@app.command()
def bench(
    suite: Annotated[
        str,
        typer.Argument(
            help="accuracy, ddp, jpeg, kernels, ladder, oneline, resident, step, transfer or views: see "
            "benchmarks/README.md."
        ),
    ],
    *,
    cases: Annotated[
        str, typer.Option(help="Which, comma-separated, in this order; default: all that there are GPUs for.")
    ] = "",
    subjects: Annotated[str, typer.Option(help="Which, comma-separated; default: all that are installed.")] = "",
    variants: Annotated[
        str, typer.Option(help="Of the training step, comma-separated, for jpeg and ddp; default: all but cpp.")
    ] = "",
    runs: Annotated[int | None, typer.Option(min=1, help="How often to measure each subject.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of the result file.")] = Path("fastload-results"),
    plot: Annotated[bool, typer.Option("--plot", help="Draw it too, for light and dark pages.")] = False,
) -> None:
    """Measure fastload, its peers and the hardware limit in turns, and write a result file."""
    from fastload import bench as benchmark  # noqa: PLC0415

    with one_line_errors():
        session = benchmark.prepare(
            suite,
            cases=[case for case in cases.split(",") if case],
            subjects=[subject for subject in subjects.split(",") if subject],
            variants=[variant for variant in variants.split(",") if variant],
            runs=runs,
            out=out,
        )
    try:
        path = session.run(Console())
        for picture in benchmark.draw(path) if plot else ():
            typer.echo(f"Drawn in {picture}")
    except (benchmark.WrongValuesError, ModuleNotFoundError) as error:
        typer.echo(f"fastload: {error}", err=True)
        raise typer.Exit(1) from None


@app.command(context_settings={"ignore_unknown_options": True})
def doctor(
    target: Annotated[str, typer.Argument(help="A script (train.py), module:factory, or a folder of images.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own arguments.")] = None,
    *,
    steps: Annotated[int, typer.Option(min=5, help="Training steps to watch.")] = 100,
    seconds: Annotated[float, typer.Option(min=1, help="After the first batch; the script is ended then.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the last steps of training to this file: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Find out what holds up a loader, and what to change.

    A script runs as it is until enough of its steps were seen; a factory returns a loader, or a loader and a function
    that trains on a batch. Exit code 0: nothing to change; 1: there is; 2: it could not be examined.
    """
    from fastload import doctor as practice  # noqa: PLC0415
    from fastload.report.plot import check_picture  # noqa: PLC0415

    try:
        with (
            one_line_errors(),
            printed_as_errors() if as_json else nullcontext(),
            practice.ProgressBar(steps) as bar,
        ):
            if plot is not None:
                check_picture(plot)
            found = practice.examine(practice.find(target, arguments or [], steps, seconds, bar.advance), bar.measuring)
    except practice.ScriptError as error:
        traceback.print_exception(error.__cause__)
        typer.echo(f"fastload: {error}", err=True)
        raise typer.Exit(USER_ERROR) from None
    typer.echo(found.json()) if as_json else Console().print(found)
    if plot is not None:
        with one_line_errors():
            _draw(found.report, plot, target)
    raise typer.Exit(1 if found.changes else USER_ERROR if not found.is_measured else 0 if found.is_healthy else 1)


def _draw(report: Report | None, picture: Path, target: str) -> None:
    """Draw the last steps of a report, or say why there is nothing to draw."""
    if report is None:
        typer.echo(f"fastload: {NOT_DRAWN}; got {target!r}", err=True)
        return
    try:
        report.plot(picture)
    except ValueError as error:
        typer.echo(f"fastload: {error}", err=True)


@app.command()
def env(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print what an issue needs: versions, devices, decoders, cores, shared memory, environment."""
    from fastload.system import describe_system  # noqa: PLC0415

    sections = describe_system()
    if as_json:
        typer.echo(json.dumps(sections, indent=2))
        return
    for section, facts in sections.items():
        typer.echo(section)
        width = max(map(len, facts), default=0)
        for name, value in facts.items():
            typer.echo(f"  {name:{width}}  {value}")


def main() -> None:
    """Run the command line; the entry point of ``fastload``."""
    app()
