"""One spelling for what looks the same: Unicode signs, LaTeX spacing, delimiters. Never changes a value.

Superscripts, subscripts and vulgar fractions are written out before NFKC, which would turn 5² into 52 and 2½
into 21/2.
"""

import re
import unicodedata

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SUPERSCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT_RUN = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
_SIGNS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∗": "*", "÷": r"\div ",
    "π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "≤": r"\le ", "≥": r"\ge ",
    "≠": r"\ne ", "∈": r"\in ", "∅": r"\emptyset ", "±": r"\pm ", "∓": r"\mp ", "°": r"^\circ ",
    "≈": r"\approx ", "…": r"\ldots ", "√": r"\sqrt ", "′": "'", "⟨": r"\langle ", "⟩": r"\rangle ",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "⅕": r"\frac{1}{5}", "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}",
    "⅘": r"\frac{4}{5}", "⅙": r"\frac{1}{6}", "⅚": r"\frac{5}{6}", "⅛": r"\frac{1}{8}",
    "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}", "ℝ": r"\mathbb{R}",
    "€": r"\eur ", "£": r"\gbp ",
}  # fmt: skip
_SIGN = re.compile("|".join(map(re.escape, _SIGNS)))

# A double backslash breaks matrix rows; each pattern steps over it.
_COMMANDS = re.compile(r"\\\\|\\([a-zA-Z]+)")
_RENAMED = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "leq": r"\le", "leqslant": r"\le",
    "geq": r"\ge", "geqslant": r"\ge", "neq": r"\ne", "varnothing": r"\emptyset", "lbrace": r"\{",
    "rbrace": r"\}", "dots": r"\ldots", "cdots": r"\ldots", "dotsc": r"\ldots", "degree": r"^\circ",
    "textbf": r"\text", "textit": r"\text", "textrm": r"\text", "mbox": r"\text",
    "textnormal": r"\text", "lvert": "|", "rvert": "|", "vert": "|", "ast": "*",
    "dbinom": r"\binom", "tbinom": r"\binom", "colon": ":", "thinspace": " ", "quad": " ",
    "qquad": " ", "left": "", "right": "", "big": "", "Big": "", "bigl": "", "bigr": "", "Bigl": "",
    "Bigr": "", "bigg": "", "Bigg": "", "displaystyle": "", "textstyle": "", "limits": "",
    "lt": "<", "gt": ">", "land": r"\text{ and }", "lor": r"\text{ or }", "sim": r"\approx",
    "simeq": r"\approx",
}  # fmt: skip
_THOUSANDS_SPACE = re.compile(r"(?<=\d)(?:,\s*\\!\s*|\{,\}|\\,|\\ |~)(?=\d{3}(?!\d))")
_SPACING = re.compile(r"\\\\|\\[,;:! ]|~")
_DELIMITERS = re.compile(r"\\\\|\\[()\[\]]")
_SPACES = re.compile(r"\s+")


def clean(text: str) -> str:
    """Text in one spelling, spaces single, without math delimiters and without a final period."""
    if not text.isascii():
        text = _ascii(text)
    if any(sign in text for sign in ("\\", "$", "~", "{,}")):
        text = _latex(text)
    text = _SPACES.sub(" ", text).strip()
    while text.endswith((".", ",", ";")) and not text.endswith("..."):
        text = text[:-1].rstrip()
    return text


def _ascii(text: str) -> str:
    text = _SUPERSCRIPT_RUN.sub(
        lambda run: "^{" + "".join(_SUPERSCRIPTS[c] for c in run.group()) + "}", text
    )
    text = _SUBSCRIPT_RUN.sub(
        lambda run: "_{" + "".join(_SUBSCRIPTS[c] for c in run.group()) + "}", text
    )
    text = _SIGN.sub(lambda sign: _SIGNS[sign.group()], text)
    return unicodedata.normalize("NFKC", text)


def _latex(text: str) -> str:
    text = text.replace(r"\$", r"\usd ").replace("$", "")
    text = _DELIMITERS.sub(_kept_row_break, text)
    text = _COMMANDS.sub(_rename, text)
    text = _THOUSANDS_SPACE.sub(",", text)
    return _SPACING.sub(lambda found: found.group() if found.group() == r"\\" else " ", text)


def _kept_row_break(found: re.Match[str]) -> str:
    return found.group() if found.group() == r"\\" else ""


def _rename(command: re.Match[str]) -> str:
    name = command.group(1)
    if name not in _RENAMED:  # the row break has no name
        return command.group()
    new = _RENAMED[name]
    # A command must not grow into the letters that follow it.
    following = command.string[command.end() : command.end() + 1]
    return new + " " if new[-1:].isalpha() and following.isalpha() else new
