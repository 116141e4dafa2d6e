"""Words that mathematics is written with."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS = _words(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh exp ln asin acos atan floor ceil"
)
PARSED_WORDS = FUNCTIONS | _words("log sqrt pi infty infinity cdot abs")
GREEK = _words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho "
    "sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar"
)
LETTER_WRAPPERS = _words("text mathrm mathbf mathit operatorname mathcal mathbb rm")

NUMBER_NAMES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8",
    "nine": "9", "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16",
}  # fmt: skip
MULTIPLIERS = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip

UNIT_ALIASES = {
    "usd": ("dollar", "dollars", "$"), "cent": ("cents", "¢"), "eur": ("euro", "euros"),
    "gbp": ("pound sterling",), "cm": ("centimeter", "centimetre"), "mm": ("millimeter", "millimetre"),
    "m": ("meter", "metre"), "km": ("kilometer", "kilometre"), "inch": ("in", "inches"),
    "ft": ("foot", "feet"), "mi": ("mile", "miles"), "yd": ("yard", "yards"), "g": ("gram",),
    "kg": ("kilogram",), "lb": ("lbs", "pound"), "oz": ("ounce",), "hour": ("hr", "hrs", "h"),
    "minute": ("min", "mins"), "second": ("sec", "secs", "s"), "l": ("liter", "litre"),
    "ml": ("milliliter", "millilitre"), "degree": ("deg",), "mph": ("miles per hour",), "unit": (),
}  # fmt: skip
NOT_UNITS = frozenset(NUMBER_NAMES) | _words(
    "and or to of by times plus minus over mod not no more less than least most about around approximately "
    "nearly almost between is are if else choose squared cubed factorial half halves third thirds quarter "
    "quarters out remainder r"
)
"""A word that changes the number before it, or says that it is not the whole answer."""

EXPRESSION_WORDS = _words(
    "sin cos tan cot sec csc log ln exp sqrt pi infinity infty arcsin arccos arctan sinh cosh tanh"
)
SHORT_WORDS = _words("no up in on or so we it is he if at by to of as an am")
"""Two letters that are a word and not a product of two symbols."""
PROSE = _words("figure proof see diagram graph above below answer know")
"""A bare phrase with one of these is talk about an answer."""
