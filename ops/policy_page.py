"""The page `ops/docs/policies.md` with its picture: what every preset does to one recorded window.

`python -m ops.policy_page` writes both anew from `ops/docs/window.jsonl`, lines that `sluice policy
simulate` takes; a test holds the written page to this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from broker.arrays import unpack
from broker.messages import Annotation
from workers.policies.presets import PRESETS
from workers.policies.program import Memory, Program
from workers.policies.settings import PolicySettings
from workers.policies.shadows import decide
from workers.policies.simulate import Line, parse, to_group
from workers.policies.statistics import DomainStatistics

FOLDER = Path(__file__).with_name("docs")
WINDOW = FOLDER / "window.jsonl"
PAGE, PICTURE = FOLDER / "policies.md", FOLDER / "policies.svg"
CELL, LEFT, ROW, GAP = 6, 190, 9, 3
TOP = 34
FULL_COLOUR = 2.0
"""A push of this size, or more, has the darkest colour."""
UP, DOWN, NONE = (0x2F, 0x9E, 0x6E), (0xC2, 0x41, 0x3C), (0xEC, 0xEC, 0xEA)


@dataclass(frozen=True, eq=False)
class Effect:
    """What one preset does to the window."""

    name: str
    push_B: np.ndarray
    """Weight times advantage of each answer; NaN where it is left out of the loss."""
    tokens_B: np.ndarray
    shares: tuple[float, ...]
    """Of the next draws, by domain."""

    @property
    def kept(self) -> float:
        return float(np.isfinite(self.push_B).mean())

    @property
    def kept_tokens(self) -> float:
        return float(self.tokens_B[np.isfinite(self.push_B)].sum() / self.tokens_B.sum())

    @property
    def magnitude(self) -> float:
        """Sum over answers of |weight x advantage|."""
        return float(np.nansum(np.abs(self.push_B)))

    @property
    def net(self) -> float:
        return float(np.nansum(self.push_B))


def recorded() -> list[Line]:
    with WINDOW.open(encoding="utf-8") as lines:
        return parse(lines)


def effects(lines: Sequence[Line]) -> list[Effect]:
    return [effect(name, lines) for name in PRESETS]


def effect(name: str, lines: Sequence[Line]) -> Effect:
    program = Program(PolicySettings(preset=name))
    memory: Memory = {}
    domains = list(dict.fromkeys(line.domain for line in lines))
    mixer = program.mixer.method
    statistics = DomainStatistics(domains, mixer.window)
    judged = [program.judge(to_group(line), memory) for line in lines]
    for one in judged:
        scores_R = one.group.scores_G[one.group.usable_G]
        statistics.saw_scores(one.group.domain, scores_R, one.group.successes()[0])
    rows = [a for group in decide(program, judged, 1, memory) for a in group]
    magnitudes: dict[str, float] = dict.fromkeys(domains, 0.0)
    owners = [line.domain for line in lines for _ in line.rewards]
    for domain, row in zip(owners, rows, strict=True):
        magnitudes[domain] += abs(row.advantage)
    statistics.close_window(magnitudes, {})
    even_D = np.full(len(domains), 1 / len(domains))
    shares_D = mixer(statistics.history(even_D, even_D, 1, {}))
    return Effect(
        name=name,
        push_B=np.array([_push(row) for row in rows]),
        tokens_B=np.array([tokens for line in lines for tokens in line.tokens]),
        shares=tuple(float(share) for share in shares_D),
    )


def _push(row: Annotation) -> float:
    if not row.admitted or not row.weight:
        return np.nan
    tokens = 1.0 if row.token_weights is None else float(unpack(row.token_weights).mean())
    return row.weight * tokens * row.advantage


# --- the picture --------------------------------------------------------------------------------


def colour(push: float) -> str:
    """Green up, red down, the stronger the darker; white where the answer is left out."""
    if not np.isfinite(push):
        return "#ffffff"
    part = round(8 * min(abs(push) / FULL_COLOUR, 1.0) ** 0.5) / 8
    towards = UP if push > 0 else DOWN
    mixed = [round(n + part * (t - n)) for n, t in zip(NONE, towards, strict=True)]
    return "#" + "".join(f"{value:02x}" for value in mixed)


def picture(lines: Sequence[Line], found: Sequence[Effect]) -> str:
    sizes = [len(line.rewards) for line in lines]
    lefts = [LEFT + sum(sizes[:n]) * CELL + n * GAP for n in range(len(sizes))]
    width = lefts[-1] + sizes[-1] * CELL + 10
    height = TOP + (len(found) + 1) * (ROW + 2) + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="8">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="12">One column an answer, one block a group. First row: the reward. '
        "Green pushes an answer up, red down, grey weighs nothing, white is left out.</text>",
    ]
    rewards = [1.0 if r else -1.0 for line in lines for r in line.rewards]
    rows = [("reward", np.array(rewards)), *((one.name, one.push_B) for one in found)]
    cells: dict[str, list[str]] = {}
    for number, (name, push_B) in enumerate(rows):
        top = TOP + number * (ROW + 2)
        out.append(f'<text x="{LEFT - 6}" y="{top + 7}" text-anchor="end">{escape(name)}</text>')
        at = 0
        for left, size in zip(lefts, sizes, strict=True):
            for row in range(size):
                cells.setdefault(colour(float(push_B[at + row])), []).append(
                    f"M{left + row * CELL} {top}h{CELL - 1}v{ROW}h-{CELL - 1}z"
                )
            at += size
    # One path a colour: a rectangle each would make the file three times as long.
    out += [f'<path fill="{fill}" d="{"".join(d)}"/>' for fill, d in cells.items()]
    return "\n".join([*out, "</svg>", ""])


# --- the page -----------------------------------------------------------------------------------


def page(lines: Sequence[Line], found: Sequence[Effect]) -> str:
    domains = list(dict.fromkeys(line.domain for line in lines))
    answers = sum(len(line.rewards) for line in lines)
    uniform = next(one for one in found if one.name == "uniform")
    solved = _solved(lines)
    head = ["preset", "answers kept", "tokens kept", "Σ\\|wA\\| to uniform", "Σ wA"]
    table = [head + [f"next: {name}" for name in domains], ["---"] * (len(head) + len(domains))]
    for one in found:
        shares = [f"{share:.0%}" for share in one.shares]
        magnitude = f"{one.magnitude / uniform.magnitude:.2f}"
        net = f"{one.net + 0.0:.2f}".replace("-0.00", "0.00")
        table.append(
            [f"`{one.name}`", f"{one.kept:.0%}", f"{one.kept_tokens:.0%}", magnitude, net, *shares]
        )
    cells = "\n".join("| " + " | ".join(row) + " |" for row in table)
    return INTRODUCTION.format(
        groups=len(lines),
        answers=answers,
        solved=solved,
        table=cells,
        page="python -m ops.policy_page",
    )


def _solved(lines: Sequence[Line]) -> str:
    found: dict[str, list[float]] = {}
    for line in lines:
        known = [float(reward) for reward in line.rewards if reward is not None]
        found.setdefault(line.domain, []).extend(known)
    return ", ".join(f"{name} {np.mean(values):.0%}" for name, values in found.items())


INTRODUCTION = """# What the presets do

`[policy] preset = "NAME"` names a policy program; what is stated beside it takes precedence. Below is what
each preset does to one and the same recorded window: {groups} groups, {answers} answers, solved: {solved}.
It is the first window of a small model on two tasks; `{page}` writes this page from `window.jsonl`,
which `sluice policy simulate --policy NAME --input ops/docs/window.jsonl` takes as well.

![What each preset does to the window](policies.svg)

*Kept* answers weigh in the loss. `Σ|wA|` is the sum of |weight × advantage|, as a part of what `uniform` has:
how large the step is. `Σ wA` is the net push: 0 where answers are weighed against each other, more where
what is kept is pushed up as a whole. *Next* is the share of the following draws by domain.

{table}

Names: `dataflex:NAME` is what DataFlex-RL's published code does; `matched_batch`, `matched_group` and
`matched_tokens` keep as much as the selector after the colon, at random; `matched_rollouts` is the selector
with twice the rollouts, kept to the tokens that `uniform` has on half of them; `strength` varies a filter;
`spurious` replaces the verdict; `identity` puts a method that changes nothing into admit, reward and weight.
"""


def main() -> None:
    lines = recorded()
    found = effects(lines)
    PAGE.write_text(page(lines, found), encoding="utf-8")
    PICTURE.write_text(picture(lines, found), encoding="utf-8")


if __name__ == "__main__":
    main()
