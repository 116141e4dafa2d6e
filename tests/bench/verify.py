"""Verdicts a second and core, on plain numbers and on symbolic answers, against math-verify called directly.

The peer is `verify(parse(gold), parse(response))`, its time limits off as in a process that may be killed.
Both get the same pairs; ours must agree with what is known of each.
"""

import logging
import random
import time

from math_verify import parse, verify

from tests.bench.result import Result, side_by_side
from workers.verifiers import math
from workers.verifiers.math import Math

ROUNDS = 5
PLAIN_LIMIT, SYMBOLIC_LIMIT = 10.0, 0.9
PLAIN, SYMBOLIC = 400, 120

Pair = tuple[str, str, bool]
"""(gold, response, whether it is right)."""

TEMPLATES = (
    (r"\frac{{{a}}}{{{b}}}", r"{a}/{b}", r"\frac{{{a}}}{{{c}}}"),
    (r"{a}\sqrt{{{p}}}", r"\sqrt{{{p}}} \cdot {a}", r"{a}\sqrt{{{q}}}"),
    (r"({a}, {b})", r"\left({a},\, {b}\right)", r"({b}, {a})"),
    (r"x^2 - {s}", r"(x-{a})(x+{a})", r"(x-{a})(x-{a})"),
    (r"{a}\pi", r"\pi \cdot {a}", r"{b}\pi"),
    (r"\left[{a}, {c}\right)", r"[{a},{c})", r"({a},{c}]"),
    (r"{a}x + {b}", r"{b} + {a} x", r"{a}x - {b}"),
    (r"{a} + {b}i", r"{b}i + {a}", r"{a} - {b}i"),
)
"""(gold, another way to write it, something else), of MATH's kind."""


def plain(count: int, seed: int) -> list[Pair]:
    """GSM8K's kind: a worked text that ends in a number, every third one wrong."""
    rng = random.Random(seed)
    pairs: list[Pair] = []
    for number in range(count):
        gold = rng.randrange(1, 5_000)
        said = gold + (number % 3 == 0)
        text = f"First {gold} - 1 = {gold - 1}, then one more. So the answer is \\boxed{{{said}}}."
        pairs.append((str(gold), text, said == gold))
    return pairs


def symbolic(count: int, seed: int) -> list[Pair]:
    rng = random.Random(seed)
    pairs: list[Pair] = []
    for number in range(count):
        a, b = rng.randrange(2, 60), rng.choice([7, 11, 13, 17, 19, 23])
        values = {"a": a, "b": b, "c": a + b, "s": a * a, "p": rng.choice([2, 3, 5]), "q": 7}
        gold, same, other = (form.format(**values) for form in TEMPLATES[number % len(TEMPLATES)])
        right = number % 3 != 0
        # A fraction or a pair may come out the same by chance.
        right = right or same == other
        pairs.append((gold, f"Hence the answer is $\\boxed{{{same if right else other}}}$.", right))
    return pairs


def ours(pairs: list[Pair]) -> float:
    """Verdicts a second, with nothing known from before."""
    math.gold.cache_clear()
    math._read.cache_clear()
    verifier = Math()
    started = time.perf_counter()
    found = [verifier.grade(response, gold, {}).score for gold, response, _ in pairs]
    rate = len(pairs) / (time.perf_counter() - started)
    wrong = [pair for pair, score in zip(pairs, found, strict=True) if bool(score) != pair[2]]
    if wrong:
        raise ValueError(f"misjudged {len(wrong)}, first {wrong[0]}")
    return rate


def peers(pairs: list[Pair]) -> float:
    started = time.perf_counter()
    for gold, response, _ in pairs:
        verify(
            parse(f"${gold}$", parsing_timeout=None),
            parse(response, parsing_timeout=None),
            timeout_seconds=None,
        )
    return len(pairs) / (time.perf_counter() - started)


def measure() -> list[Result]:
    for noisy in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    results: list[Result] = []
    for name, pairs, limit in (
        ("plain numbers", plain(PLAIN, 1), PLAIN_LIMIT),
        ("symbolic answers", symbolic(SYMBOLIC, 2), SYMBOLIC_LIMIT),
    ):
        peers(pairs[:20])  # imports and builds its parser
        mine, peer = side_by_side(lambda p=pairs: ours(p), lambda p=pairs: peers(p), rounds=ROUNDS)
        results.append(Result("verify", name, "verdicts/s", mine, peer, limit * peer, ROUNDS))
    return results
