"""Charts as inline SVG, without scripts: lines over steps, and horizontal bars. Names are escaped."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 12, 34
COLOURS = ("#2a6fdb", "#d9622b", "#2f9e6e", "#8a5cc7", "#c2417c", "#7a7f3a")

NOTHING = Markup('<p class="none">none</p>')

Points = Sequence[tuple[float, float]]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that span low..high, ends included."""
    if high - low <= 1e-6 * max(1.0, abs(low)):
        high = low + max(1.0, abs(low) / 100)  # flat but for rounding
    rough = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 10) for n in range(first, last + 1)]


def _label(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


@dataclass(frozen=True)
class Frame:
    """Maps values to the drawing's coordinates."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x_low) / ((self.x_high - self.x_low) or 1.0)
        up = (y - self.y_low) / ((self.y_high - self.y_low) or 1.0)
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1),
        )


def line_chart(
    series: Mapping[str, Points], *, x_name: str, y_name: str, share: bool = False
) -> Markup:
    """One line a name. share: the values are parts of 1, shown in per cent."""
    points = [point for line in series.values() for point in line]
    if not points:
        return NOTHING
    xs, ys = zip(*points, strict=True)
    y_ticks = ticks(min(0.0, *ys), 1.0 if share else max(1e-9, *ys))
    frame = Frame(min(xs), max(xs), y_ticks[0], y_ticks[-1])
    parts = _grid(frame, y_ticks, share) + _x_axis(frame, x_name)
    for colour, line in zip(_colours(len(series)), series.values(), strict=True):
        parts += _line([frame.at(*point) for point in line], colour)
    return Markup(f"{_legend(list(series))}{_svg(HEIGHT, f'{y_name} over {x_name}', parts)}")


def _grid(frame: Frame, y_ticks: Sequence[float], share: bool) -> list[str]:
    parts = []
    for y in y_ticks:
        _, at_y = frame.at(frame.x_low, y)
        text = f"{100 * y:.0f} %" if share else _label(y)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at_y}" y2="{at_y}"/>'
        )
        parts.append(_text(LEFT - 6, at_y + 4, text, anchor="end", kind="tick"))
    return parts


def _x_axis(frame: Frame, name: str) -> list[str]:
    inside = [x for x in ticks(frame.x_low, frame.x_high) if frame.x_low <= x <= frame.x_high]
    below = HEIGHT - BOTTOM + 16
    parts = [
        _text(frame.at(x, 0)[0], below, _label(x), anchor="middle", kind="tick") for x in inside
    ]
    return [*parts, _text(WIDTH - RIGHT, HEIGHT - 4, name, anchor="end", kind="tick")]


def _line(places: Sequence[tuple[float, float]], colour: str) -> list[str]:
    path = " ".join(f"{x},{y}" for x, y in places)
    parts = [f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>']
    if len(places) <= 12:
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places]
    return parts


def _text(x: float, y: float, text: str, *, anchor: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def bar_chart(bars: Mapping[str, float], *, name: str, form: str = ",.0f") -> Markup:
    """Horizontal bars, the value written at the end of each."""
    if not bars:
        return NOTHING
    row, names = 26, 210
    top = max(*bars.values(), 1e-9)
    parts = []
    for at, (label, value) in enumerate(bars.items()):
        y, length = at * row + 4, max(1.0, value / top * (WIDTH - names - 90))
        parts += [
            _text(names - 8, y + 14, label[:32], anchor="end", kind="label"),
            f'<rect x="{names}" y="{y}" width="{length:.1f}" height="18" rx="2" fill="{COLOURS[0]}"/>',
            _text(
                round(names + length + 6, 1),
                y + 14,
                format(value, form),
                anchor="start",
                kind="label",
            ),
        ]
    return Markup(_svg(len(bars) * row + 8, name, parts))


def _colours(count: int) -> list[str]:
    return [COLOURS[at % len(COLOURS)] for at in range(count)]


def _legend(names: Sequence[str]) -> str:
    keys = (
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for colour, name in zip(_colours(len(names)), names, strict=True)
    )
    return f'<div class="legend">{"".join(keys)}</div>'


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
