"""Draw README's timelines, docs/pictures/timeline-*.svg: the demo's last steps, in the plain loop and through offload.

    python benchmarks/timeline.py            on a GPU, in three minutes

They show what was measured where this ran; README says where that was. One pass is so long that the workers' queues,
full at its begin, are empty at its end if training is faster than they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastload.demo.loops import LOOPS, warm_up
from fastload.demo.settings import prepare

PICTURES = Path("docs/pictures")
NAMES = {"plain loop": "before", "offload": "after"}
STEPS = 16  # more than the workers, which finish in bursts of a batch each

app = typer.Typer(add_completion=False)


@app.command()
def main(
    *,
    out: Annotated[Path, typer.Option(help="The folder of the pictures.")] = PICTURES,
    model: Annotated[str, typer.Option(help="A torchvision classification model.")] = "resnet18",
    images: Annotated[int, typer.Option(help="How many photographs.")] = 12_000,
) -> None:
    """Train by both loops and draw the last steps of each, for light and for dark pages."""
    settings = prepare(model=model, images=images, epochs=1)
    out.mkdir(parents=True, exist_ok=True)
    warm_up(settings)
    for loop, name in NAMES.items():
        result = LOOPS[loop](settings, lambda: None)
        typer.echo(f"{loop}: {result.images_per_second:,.0f} images/s, {result.waiting:.0%} waiting")
        for page in ("light", "dark"):
            result.report.plot(out / f"timeline-{name}-{page}.svg", steps=STEPS, dark=page == "dark")


if __name__ == "__main__":
    app()
