"""``plot``: the timeline of some steps as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastload.report.timeline import Lane

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DPI", "FONT", "Theme", "check_picture", "load_matplotlib", "plot"]

# By Okabe and Ito, which the colour-blind can tell apart.
COLOURS = {
    "loading": "#999999",
    "pinning": "#56B4E9",
    "decoding": "#0072B2",
    "preparing": "#CC79A7",
    "copying": "#E69F00",
    "transforming": "#F0E442",
    "training": "#009E73",
    "waiting for input": "#D55E00",
}
WIDTH, LANE, MARGIN = 9.0, 0.42, 1.35  # inches
DPI = 160
FONT = 11


class Theme:
    """Colours of the page that a picture stands on."""

    def __init__(self, *, dark: bool) -> None:
        self.page = "#0d1117" if dark else "#ffffff"  # GitHub's
        self.ink = "#e6edf3" if dark else "#1f2328"
        self.line = "#30363d" if dark else "#d1d9e0"

    def apply(self, axes: Axes) -> None:
        """Draw no more than is needed, in these colours."""
        figure = axes.get_figure()
        assert figure is not None
        figure.set_facecolor(self.page)
        axes.set_facecolor(self.page)
        axes.tick_params(colors=self.ink, labelsize=FONT, length=0)
        axes.xaxis.label.set_color(self.ink)
        for name, spine in axes.spines.items():
            spine.set_visible(name == "bottom")
            spine.set_color(self.line)
        axes.grid(visible=True, axis="x", color=self.line, linewidth=0.6)
        axes.set_axisbelow(True)


def plot(lanes: Sequence[Lane], window: tuple[float, float], title: str, path: Path, *, dark: bool = False) -> None:
    """Write the picture of the lanes, the first on top, from one time to another; the suffix says of which kind.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: the suffix is none of .png, .svg and .pdf.
    """
    plt = load_matplotlib(path)
    theme = Theme(dark=dark)
    figure, axes = plt.subplots(figsize=(WIDTH, MARGIN + LANE * len(lanes)), layout="constrained")
    start, end = window
    shown: dict[str, None] = {}
    for row, lane in enumerate(lanes):
        for bar in lane.bars:
            begin, length = max(bar.begin, start), min(bar.end, end) - max(bar.begin, start)
            if length > 0:
                shown[bar.what] = None
                axes.barh(row, length * 1e3, left=(begin - start) * 1e3, height=0.72, color=COLOURS[bar.what])
    axes.set_yticks(range(len(lanes)), [lane.name for lane in lanes])
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlim(0, (end - start) * 1e3)
    axes.set_xlabel("ms", fontsize=FONT)
    axes.set_title(title, fontsize=FONT + 1, loc="left", color=theme.ink)
    theme.apply(axes)
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[what]) for what in COLOURS if what in shown]
    labels = [what for what in COLOURS if what in shown]
    figure.legend(
        handles, labels, loc="outside lower left", ncols=len(labels), frameon=False, fontsize=FONT - 1,
        labelcolor=theme.ink, handlelength=1.0, columnspacing=1.2,
    )  # fmt: skip
    figure.savefig(path, dpi=DPI, facecolor=theme.page)
    plt.close(figure)


def check_picture(path: Path) -> None:
    """Refuse a file that would be no picture.

    Raises:
        ValueError: the suffix is none of .png, .svg and .pdf, or there is no such folder.
    """
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"the suffix of a picture must be .png, .svg or .pdf; got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"a picture's folder must be there; got {str(path)!r}")


def load_matplotlib(path: Path) -> Any:
    """``matplotlib.pyplot``, drawing to files.

    Raises:
        ModuleNotFoundError: it is not installed.
        ValueError: it writes no such file.
    """
    check_picture(path)
    try:
        import matplotlib as mpl  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("pictures need matplotlib, which is not installed: pip install matplotlib") from error
    mpl.use("agg")
    from matplotlib import pyplot  # noqa: PLC0415

    return pyplot
