"""The special cases that the array API standard lists, as text tables, and how to read them.

A line of a table is `condition : result`. A condition names classes of values, one per operand (or
one for the real and one for the imaginary part); each class stands for a few sample values. A
result is a value, an operand (`x1`, `-|x1|`), or an approximate multiple of π; a `?` before it
leaves its sign open.
"""

import math
from collections.abc import Iterator
from itertools import product

TINY, HUGE = 1e-30, 1e30
_INF, _NAN = math.inf, math.nan

CLASSES = {
    "nan": (_NAN,),
    "+inf": (_INF,),
    "-inf": (-_INF,),
    "inf": (_INF, -_INF),
    "+0": (0.0,),
    "-0": (-0.0,),
    "0": (0.0, -0.0),
    "1": (1.0,),
    "-1": (-1.0,),
    "±1": (1.0, -1.0),
    ">0": (TINY, 0.5, 1.0, 3.0, HUGE, _INF),
    "<0": (-TINY, -0.5, -1.0, -3.0, -HUGE, -_INF),
    ">1": (1.5, HUGE, _INF),
    "<-1": (-1.5, -HUGE, -_INF),
    "<1": (0.5, 0.0, -0.0, -2.0, -_INF),
    "|>1|": (1.5, -1.5, HUGE, -_INF),
    "|<1|": (0.5, -0.5, TINY),
    "positive": (TINY, 0.5, 1.0, 2.0, 3.5, HUGE),
    "negative": (-TINY, -0.5, -1.0, -2.0, -3.5, -HUGE),
    "finite": (0.0, -0.0, 0.5, -1.0, 2.5, -3.0),
    "nonzero": (0.5, -1.0, 2.5, -3.0),
    "not-nan": (0.0, -0.0, 1.0, -2.5, _INF, -_INF),
    "not-0": (0.5, -1.0, _INF, -_INF),
    "not-1": (0.0, -0.0, -1.0, 2.5, _INF, -_INF, _NAN),
    "any": (0.0, -0.0, 1.0, -2.5, _INF, -_INF, _NAN),
    "odd>0": (1.0, 3.0, 5.0),
    "even>0": (2.0, 0.5, 2.5, _INF),
    "odd<0": (-1.0, -3.0),
    "even<0": (-2.0, -0.5, -_INF),
    "fraction": (0.5, -2.5),
    "integer": (1.0, -2.0, 3.0, 1024.0),
    "half": (0.5, -0.5, 1.5, -1.5, 2.5, -2.5),
}  # fmt: skip


def lines(table: str) -> Iterator[tuple[list[str], str]]:
    """Conditions and result of every line of a table."""
    for line in filter(str.strip, table.splitlines()):
        condition, _, result = line.strip().rpartition(" : ")
        yield condition.split(), result.strip()


def samples(names: list[str]) -> Iterator[tuple[float, ...]]:
    """Every combination of sample values that a condition stands for."""
    return product(*(CLASSES[name] for name in names))


def value_of(text: str) -> float:
    """The number that a result names."""
    sign = -1.0 if text.startswith("-") else 1.0
    name = text.lstrip("+-")
    if "π" in name:
        multiple, _, divisor = name.partition("/")
        return sign * math.pi * float(multiple[:-1] or 1) / float(divisor or 1)
    return sign * {"nan": _NAN, "inf": _INF, "0": 0.0, "1": 1.0}[name]


def matches(found: float, expected: float, *, sign: bool = True) -> bool:
    """Equal values: NaN equals NaN, +0 differs from −0; multiples of π are approximate."""
    if math.isnan(expected) or math.isnan(found):
        return math.isnan(expected) and math.isnan(found)
    if not sign:
        found, expected = abs(found), abs(expected)
    if expected == 0 or math.isinf(expected):
        return found == expected and math.copysign(1, found) == math.copysign(1, expected)
    return math.isclose(found, expected, rel_tol=1e-6)


UNARY = {
    "abs": "nan : nan\n -0 : +0\n -inf : +inf",
    "acos": "nan : nan\n >1 : nan\n <-1 : nan\n 1 : +0",
    "acosh": "nan : nan\n <1 : nan\n 1 : +0\n +inf : +inf",
    "asin": "nan : nan\n >1 : nan\n <-1 : nan\n +0 : +0\n -0 : -0",
    "asinh": "nan : nan\n +0 : +0\n -0 : -0\n +inf : +inf\n -inf : -inf",
    "atan": "nan : nan\n +0 : +0\n -0 : -0\n +inf : +π/2\n -inf : -π/2",
    "atanh": "nan : nan\n <-1 : nan\n >1 : nan\n -1 : -inf\n 1 : +inf\n +0 : +0\n -0 : -0",
    "ceil": "integer : x1\n +inf : +inf\n -inf : -inf\n +0 : +0\n -0 : -0\n nan : nan",
    "cos": "nan : nan\n 0 : 1\n inf : nan",
    "cosh": "nan : nan\n 0 : 1\n inf : +inf",
    "exp": "nan : nan\n 0 : 1\n +inf : +inf\n -inf : +0",
    "expm1": "nan : nan\n +0 : +0\n -0 : -0\n +inf : +inf\n -inf : -1",
    "floor": "integer : x1\n +inf : +inf\n -inf : -inf\n +0 : +0\n -0 : -0\n nan : nan",
    "log": "nan : nan\n <0 : nan\n 0 : -inf\n 1 : +0\n +inf : +inf",
    "log1p": "nan : nan\n <-1 : nan\n -1 : -inf\n -0 : -0\n +0 : +0\n +inf : +inf",
    "log2": "nan : nan\n <0 : nan\n 0 : -inf\n 1 : +0\n +inf : +inf",
    "log10": "nan : nan\n <0 : nan\n 0 : -inf\n 1 : +0\n +inf : +inf",
    "negative": "+0 : -0\n -0 : +0\n +inf : -inf\n -inf : +inf\n nan : nan",
    "positive": "any : x1",
    "reciprocal": "+0 : +inf\n -0 : -inf\n +inf : +0\n -inf : -0\n nan : nan",
    "round": "integer : x1\n inf : x1\n 0 : x1\n nan : nan\n half : even",
    "sign": "<0 : -1\n 0 : ?0\n >0 : +1\n nan : nan",
    "sin": "nan : nan\n +0 : +0\n -0 : -0\n inf : nan",
    "sinh": "nan : nan\n +0 : +0\n -0 : -0\n +inf : +inf\n -inf : -inf",
    "square": "0 : +0\n inf : +inf\n nan : nan",
    "sqrt": "nan : nan\n <0 : nan\n +0 : +0\n -0 : -0\n +inf : +inf",
    "tan": "nan : nan\n +0 : +0\n -0 : -0\n inf : nan",
    "tanh": "nan : nan\n +0 : +0\n -0 : -0\n +inf : +1\n -inf : -1",
    "trunc": "integer : x1\n +inf : +inf\n -inf : -inf\n +0 : +0\n -0 : -0\n nan : nan",
}

PREDICATES = {
    "isfinite": {"inf": False, "nan": False, "finite": True},
    "isinf": {"inf": True, "nan": False, "finite": False},
    "isnan": {"nan": True, "not-nan": False},
    "signbit": {"+0": False, "-0": True, "positive": False, "negative": True,
                "+inf": False, "-inf": True},
}  # fmt: skip

_QUOTIENT = """
    nan any : nan
    any nan : nan
    inf inf : nan
    0 0 : nan
"""
_DIVIDE = f"""{_QUOTIENT}
    +0 >0 : +0
    -0 >0 : -0
    +0 <0 : -0
    -0 <0 : +0
    >0 +0 : +inf
    >0 -0 : -inf
    <0 +0 : -inf
    <0 -0 : +inf
"""

BINARY = {
    "add": """
        nan any : nan
        any nan : nan
        +inf -inf : nan
        -inf +inf : nan
        +inf +inf : +inf
        -inf -inf : -inf
        +inf finite : +inf
        -inf finite : -inf
        finite +inf : +inf
        finite -inf : -inf
        -0 -0 : -0
        -0 +0 : +0
        +0 -0 : +0
        +0 +0 : +0
        0 nonzero : x2
        nonzero 0 : x1
        1 -1 : +0
        -1 1 : +0
    """,
    "subtract": """
        nan any : nan
        any nan : nan
        +inf +inf : nan
        -inf -inf : nan
        +inf -inf : +inf
        -inf +inf : -inf
        finite +inf : -inf
        finite -inf : +inf
        -0 +0 : -0
        +0 +0 : +0
        -0 -0 : +0
        +0 -0 : +0
        1 1 : +0
    """,
    "multiply": """
        nan any : nan
        any nan : nan
        inf 0 : nan
        0 inf : nan
        inf inf : product
        inf nonzero : product
        nonzero inf : product
        0 finite : product
        finite 0 : product
    """,
    "divide": f"""{_DIVIDE}
        +inf positive : +inf
        +inf negative : -inf
        -inf positive : -inf
        -inf negative : +inf
        positive +inf : +0
        positive -inf : -0
        negative +inf : -0
        negative -inf : +0
    """,
    "floor_divide": f"""{_DIVIDE}
        +inf positive : +inf|nan
        +inf negative : -inf|nan
        -inf positive : -inf|nan
        -inf negative : +inf|nan
        positive +inf : +0
        positive -inf : -0|-1
        negative +inf : -0|-1
        negative -inf : +0
    """,
    "remainder": f"""{_QUOTIENT}
        0 >0 : +0
        0 <0 : -0
        >0 0 : nan
        <0 0 : nan
        inf positive : nan
        inf negative : nan
        positive +inf : x1
        positive -inf : x2
        negative +inf : x2
        negative -inf : x1
    """,
    "pow": """
        not-1 nan : nan
        any 0 : 1
        nan not-0 : nan
        |>1| +inf : +inf
        |>1| -inf : +0
        ±1 inf : 1
        1 not-nan : 1
        |<1| +inf : +0
        |<1| -inf : +inf
        +inf >0 : +inf
        +inf <0 : +0
        -inf odd>0 : -inf
        -inf even>0 : +inf
        -inf odd<0 : -0
        -inf even<0 : +0
        +0 >0 : +0
        +0 <0 : +inf
        -0 odd>0 : -0
        -0 even>0 : +0
        -0 odd<0 : -inf
        -0 even<0 : +inf
        negative fraction : nan
    """,
    "atan2": """
        nan any : nan
        any nan : nan
        >0 0 : +π/2
        +0 >0 : +0
        +0 +0 : +0
        +0 -0 : +π
        +0 <0 : +π
        -0 >0 : -0
        -0 +0 : -0
        -0 -0 : -π
        -0 <0 : -π
        <0 0 : -π/2
        positive +inf : +0
        positive -inf : +π
        negative +inf : -0
        negative -inf : -π
        +inf finite : +π/2
        -inf finite : -π/2
        +inf +inf : +π/4
        +inf -inf : +3π/4
        -inf +inf : -π/4
        -inf -inf : -3π/4
    """,
    "copysign": """
        not-nan <0 : -|x1|
        not-nan -0 : -|x1|
        not-nan +0 : |x1|
        not-nan >0 : |x1|
        nan any : nan
    """,
    "hypot": """
        inf any : +inf
        any inf : +inf
        0 finite : |x2|
        finite 0 : |x1|
        finite nan : nan
        nan finite : nan
        nan nan : nan
    """,
    "logaddexp": """
        nan any : nan
        any nan : nan
        +inf not-nan : +inf
        not-nan +inf : +inf
        -inf -inf : -inf
    """,
    "maximum": "nan any : nan\n any nan : nan\n -inf finite : x2\n +inf finite : +inf",
    "minimum": "nan any : nan\n any nan : nan\n -inf finite : -inf\n +inf finite : x2",
    "nextafter": "nan any : nan\n any nan : nan\n -0 +0 : +0\n +0 -0 : -0\n nonzero nonzero : step",
}

COMPARISONS = {
    "equal": {"nan any": False, "any nan": False, "+inf +inf": True, "-inf -inf": True,
              "0 0": True, "+inf -inf": False, "0 nonzero": False},
    "not_equal": {"nan any": True, "any nan": True, "+inf -inf": True, "-inf +inf": True,
                  "0 0": False, "+inf +inf": False, "0 nonzero": True},
    "greater": {"nan any": False, "any nan": False, "0 0": False, "+inf finite": True},
    "greater_equal": {"nan any": False, "any nan": False, "0 0": True, "inf -inf": True},
    "less": {"nan any": False, "any nan": False, "0 0": False, "-inf finite": True},
    "less_equal": {"nan any": False, "any nan": False, "0 0": True, "inf +inf": True},
}  # fmt: skip

_CIS_EXP = """
    finite +inf : nan nan
    finite nan : nan nan
"""

# Real part, imaginary part : real part, imaginary part; the lower half plane follows by symmetry.
COMPLEX = {
    "acos": """
        0 +0 : π/2 -0
        0 nan : π/2 nan
        finite +inf : π/2 -inf
        nonzero nan : nan nan
        -inf positive : π -inf
        +inf positive : +0 -inf
        -inf +inf : 3π/4 -inf
        +inf +inf : π/4 -inf
        inf nan : nan ?inf
        nan finite : nan nan
        nan +inf : nan -inf
        nan nan : nan nan
    """,
    "acosh": """
        0 +0 : +0 π/2
        finite +inf : +inf π/2
        nonzero nan : nan nan
        +0 nan : nan ?π/2
        -inf positive : +inf π
        +inf positive : +inf +0
        -inf +inf : +inf 3π/4
        +inf +inf : +inf π/4
        inf nan : +inf nan
        nan finite : nan nan
        nan +inf : +inf nan
        nan nan : nan nan
    """,
    "asinh": """
        +0 +0 : +0 +0
        positive +inf : +inf π/2
        finite nan : nan nan
        +inf positive : +inf +0
        +inf +inf : +inf π/4
        nan +0 : nan +0
        nan nonzero : nan nan
        nan +inf : ?inf nan
        nan nan : nan nan
    """,
    "atanh": """
        +0 +0 : +0 +0
        +0 nan : +0 nan
        1 +0 : +inf +0
        positive +inf : +0 π/2
        nonzero nan : nan nan
        +inf positive : +0 π/2
        +inf +inf : +0 π/2
        +inf nan : +0 nan
        nan finite : nan nan
        nan +inf : ?0 π/2
        nan nan : nan nan
    """,
    "cosh": """
        +0 +0 : 1 +0
        +0 +inf : nan ?0
        +0 nan : nan ?0
        nonzero +inf : nan nan
        nonzero nan : nan nan
        +inf +0 : +inf +0
        +inf nonzero : +inf*cis
        +inf +inf : ?inf nan
        +inf nan : +inf nan
        nan 0 : nan ?0
        nan nonzero : nan nan
        nan nan : nan nan
    """,
    "sinh": """
        +0 +0 : +0 +0
        +0 +inf : ?0 nan
        +0 nan : ?0 nan
        positive +inf : nan nan
        positive nan : nan nan
        +inf +0 : +inf +0
        +inf nonzero : +inf*cis
        +inf +inf : ?inf nan
        +inf nan : ?inf nan
        nan +0 : nan +0
        nan nonzero : nan nan
        nan nan : nan nan
    """,
    "tanh": """
        +0 +0 : +0 +0
        nonzero +inf : nan nan
        +0 +inf : +0 nan
        nonzero nan : nan nan
        +0 nan : +0 nan
        +inf positive : 1 ?0
        +inf +inf : 1 ?0
        +inf nan : 1 ?0
        nan +0 : nan +0
        nan nonzero : nan nan
        nan nan : nan nan
    """,
    "exp": f"""{_CIS_EXP}
        0 +0 : 1 +0
        +inf +0 : +inf +0
        -inf finite : +0*cis
        +inf nonzero : +inf*cis
        -inf +inf : ?0 ?0
        +inf +inf : ?inf nan
        -inf nan : ?0 ?0
        +inf nan : ?inf nan
        nan +0 : nan +0
        nan not-0 : nan nan
        nan nan : nan nan
    """,
    "expm1": f"""{_CIS_EXP}
        +0 +0 : +0 +0
        +inf +0 : +inf +0
        -inf +0 : -1 +0
        +inf nonzero : +inf*cis
        -inf +inf : -1 ?0
        +inf +inf : ?inf nan
        -inf nan : -1 ?0
        +inf nan : ?inf nan
        nan +0 : nan +0
        nan not-0 : nan nan
        nan nan : nan nan
    """,
    "log": """
        -0 +0 : -inf π
        +0 +0 : -inf +0
        finite +inf : +inf π/2
        finite nan : nan nan
        -inf positive : +inf π
        +inf positive : +inf +0
        -inf +inf : +inf 3π/4
        +inf +inf : +inf π/4
        inf nan : +inf nan
        nan finite : nan nan
        nan +inf : +inf nan
        nan nan : nan nan
    """,
    "log1p": """
        -1 +0 : -inf +0
        finite +inf : +inf π/2
        finite nan : nan nan
        -inf positive : +inf π
        +inf positive : +inf +0
        -inf +inf : +inf 3π/4
        +inf +inf : +inf π/4
        inf nan : +inf nan
        nan finite : nan nan
        nan +inf : +inf nan
        nan nan : nan nan
    """,
    # Where the standard's lines for infinite real parts contradict each other: C99, annex G.
    "sqrt": """
        0 +0 : +0 +0
        any +inf : +inf +inf
        finite nan : nan nan
        -inf positive : +0 +inf
        +inf positive : +inf +0
        -inf nan : nan ?inf
        +inf nan : +inf nan
        nan finite : nan nan
        nan nan : nan nan
    """,
    "sign": "0 0 : ?0 ?0\n nan any : nan nan\n any nan : nan nan",
}
