"""The table of a live run, drawn with rich."""

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ops.progress import Pulse, clock, counts, ending, number, percent, waited_for, warmup
from ops.view import RunView


def render(
    view: RunView, pulse: Pulse, *, steps: int, title: str, now_us: int, memory_bytes: int
) -> RenderableType:
    """Heading with progress, one row a domain, then the flow and what it waits for."""
    return Group(
        _heading(view, pulse, steps, title, now_us),
        _domains(view),
        _flow(view, pulse, memory_bytes),
    )


def _heading(view: RunView, pulse: Pulse, steps: int, title: str, now_us: int) -> RenderableType:
    since = clock(view.running_s(now_us))
    left = view.seconds_left(steps)
    if view.ready_us is None:
        state = warmup(pulse)
    elif view.ended is not None:
        state = ending(view)
    elif view.draining is not None:
        state = f"draining: {view.draining}"
    else:
        state = f"{clock(left)} left" if left is not None else "first steps"
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        Text(title, style="bold"),
        ProgressBar(total=steps, completed=view.step, width=30),
        Text(f"step {view.step} of {steps}"),
        Text(f"{since} passed, {state}"),
    )
    return grid


def _domains(view: RunView) -> RenderableType:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for column in ("domain", "reward", "held-out before", "now", "best"):
        table.add_column(column, justify="left" if column == "domain" else "right")
    for domain in view.domains():
        scores = [e.score for e in view.evaluations.get(domain, [])]
        known = [score for score in scores if score is not None]
        table.add_row(
            Text(domain),
            number(view.reward(domain)),
            percent(scores[0]) if scores else "-",
            percent(scores[-1]) if len(scores) > 1 else "-",
            percent(max(known)) if len(known) > 1 else "-",
        )
    return table


def _flow(view: RunView, pulse: Pulse, memory_bytes: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    queues = ", ".join(f"{role} {depth}" for role, depth in pulse.depths.items()) or "-"
    rows = [
        ("groups", counts(view)),
        ("staleness", f"at most {view.staleness_max}, version {view.version}"),
        (
            "speed",
            f"{number(view.samples_per_s(), '.3g')} samples/s, memory {memory_bytes / 2**30:.2f} GiB",
        ),
        ("queues", queues),
        ("waiting for", waited_for(pulse)),
    ]
    if view.incidents:
        total = ", ".join(f"{kind} {n}" for kind, n in view.incidents.most_common())
        rows.append(("incidents", f"{total}; last: {view.last_incident[:120]}"))
    for name, value in rows:
        grid.add_row(Text(name, style="dim"), Text(value))
    return grid
