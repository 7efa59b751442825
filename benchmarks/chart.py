"""Draw README's chart of training from JPEG files, docs/pictures/jpeg-*.svg, from benchmarks/results/ alone.

    python benchmarks/chart.py            draw them
    python benchmarks/chart.py --check    change nothing; exit 1 if they differ from the result file

It is plain SVG, so that the same figures give the same bytes, whatever else is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from xml.sax.saxutils import escape

import typer

from fastload.bench import Result

RESULT = Path("benchmarks/results/jpeg--nvidia-h200.json")
PICTURES = Path("docs/pictures")
CASES = {"resnet50_b256": "ResNet-50", "resnet18_b512": "ResNet-18", "vit_b16_b128": "ViT-B/16"}
SUBJECTS = {
    "fastload": "fastload",
    "dali": "NVIDIA DALI",
    "torchvision_timm": "15 workers, torchvision",
    "pil_timm": "15 workers, Pillow",
}
BEST_OF = {"dali": ("dali", "dali_crop")}  # ways of one peer, of which the better is shown
VARIANT = "ordinary"  # of the training step, which is shown
WIDTH, LEFT, RIGHT = 800, 200, 60  # pixels: the picture, what is beside the bars
TOP, BAR, STEP, GAP = 70, 16, 22, 42  # the heading, a bar, from bar to bar, a case's name
FULL = WIDTH - LEFT - RIGHT  # the limit


@dataclass(frozen=True)
class Theme:
    """The colours of a page."""

    page: str
    ink: str
    faint: str
    ours: str
    others: str


THEMES = {
    "light": Theme("#ffffff", "#1f2328", "#59636e", "#0072b2", "#a8b1ba"),
    "dark": Theme("#0d1117", "#e6edf3", "#9198a1", "#4aa8e0", "#59636e"),
}

app = typer.Typer(add_completion=False)


@app.command()
def main(
    *,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if a picture differs.")] = False,
    root: Annotated[Path, typer.Option(help="The folder that holds README.md.")] = Path(__file__).parent.parent,
) -> None:
    """Draw the chart, for light and for dark pages."""
    result = Result.read(root / RESULT)
    for name, theme in THEMES.items():
        path = root / PICTURES / f"jpeg-{name}.svg"
        drawn = chart(result, theme)
        if path.exists() and path.read_text() == drawn:
            continue
        if check:
            typer.echo(f"{path} differs from {RESULT}. Run: python benchmarks/chart.py", err=True)
            raise typer.Exit(1)
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn)


def chart(result: Result, theme: Theme) -> str:
    """Return the picture of a result of the suite ``jpeg``."""
    height = TOP + len(CASES) * (GAP + len(SUBJECTS) * STEP) + 10
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            'font-family="system-ui, sans-serif" font-size="14">',
            f"<title>{escape(described(result))}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="{theme.page}"/>',
            f'<text x="16" y="26" font-size="17" font-weight="600" fill="{theme.ink}">Training from JPEG files</text>',
            f'<text x="16" y="48" fill="{theme.faint}">Share of the speed with all data on the GPU. '
            f"{escape(result.meta['device'])}, {result.meta['cpu_count']} cores.</text>",
            *_bars(result, theme),
            "</svg>\n",
        ]
    )


def described(result: Result) -> str:
    """Return what the chart shows, for those who do not see it."""
    cases = (
        f"{title}: " + ", ".join(f"{label} {share(result, case, name):.0%}" for name, label in SUBJECTS.items())
        for case, title in CASES.items()
    )
    return f"Share of the speed with all data on the GPU. {'; '.join(cases)}."


def share(result: Result, case: str, subject: str) -> float:
    """Return a subject's share of the limit."""
    ways = BEST_OF.get(subject, (subject,))
    rows = [row for row in result.rows if row["case"] == case and row.get("variant", VARIANT) == VARIANT]
    return max(float(row["ratio_to_limit"]) for row in rows if row["subject"] in ways and "ratio_to_limit" in row)


def _bars(result: Result, theme: Theme) -> Iterator[str]:
    y = TOP
    for case, title in CASES.items():
        bottom = y + GAP + len(SUBJECTS) * STEP - (STEP - BAR)
        yield f'<text x="16" y="{y + 26}" font-weight="600" fill="{theme.ink}">{escape(title)}</text>'
        yield f'<line x1="{LEFT + FULL}" x2="{LEFT + FULL}" y1="{y + 30}" y2="{bottom}" stroke="{theme.faint}"/>'
        yield f'<text x="{LEFT + FULL}" y="{y + 26}" text-anchor="middle" fill="{theme.faint}">limit</text>'
        y += GAP
        for subject, label in SUBJECTS.items():
            ours, value = subject == "fastload", share(result, case, subject)
            length, middle = round(FULL * value, 1), y + BAR - 3
            weight = ' font-weight="600"' if ours else ""
            colour = theme.ours if ours else theme.others
            text = f'fill="{theme.ink}"{weight}'
            yield f'<text x="{LEFT - 10}" y="{middle}" text-anchor="end" {text}>{escape(label)}</text>'
            yield f'<rect x="{LEFT}" y="{y}" width="{length}" height="{BAR}" rx="2" fill="{colour}"/>'
            yield f'<text x="{LEFT + FULL + 12}" y="{middle}" {text}>{value:.0%}</text>'
            y += STEP


if __name__ == "__main__":
    app()
