"""Random numbers: `wf.random`. A draw is a function of a key and a position, and of nothing else.

    key = wf.random.key(7)
    first, second = wf.random.split(key)
    x = wf.random.normal(first, (3, 4))

The same key gives the same numbers on every backend, in any layout, alone or under `vmap`; so use a
key once. Without keys: `wf.random.seed(7)` and `wf.uniform`, `wf.randn`…, or your own `Generator`.
Parameters that no distribution has are refused where their values are known. Those that are
computed on the way, in a compiled or mapped function, are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

from weft.core.common.peers import refuse
from weft.core.tensor.tensor import Tensor
from weft.ops.random.continuous import (
    bits,
    cauchy,
    exponential,
    gumbel,
    laplace,
    logistic,
    lognormal,
    maxwell,
    normal,
    pareto,
    rayleigh,
    truncated_normal,
    uniform,
    weibull_min,
)
from weft.ops.random.counts import binomial, geometric, multinomial, poisson
from weft.ops.random.discrete import (
    bernoulli,
    categorical,
    choice,
    permutation,
    rademacher,
    randint,
    shuffle,
)
from weft.ops.random.gamma import (
    beta,
    chisquare,
    dirichlet,
    f,
    gamma,
    loggamma,
    multivariate_normal,
    t,
    wishart,
)
from weft.ops.random.state import (
    Generator,
    fold_in,
    generator,
    get_state,
    key,
    next_key,
    seed,
    set_state,
    split,
    using,
)

_DISTRIBUTIONS: tuple[Callable[..., Tensor], ...] = (
    bernoulli,
    beta,
    binomial,
    bits,
    categorical,
    cauchy,
    chisquare,
    choice,
    dirichlet,
    exponential,
    f,
    gamma,
    geometric,
    gumbel,
    laplace,
    loggamma,
    logistic,
    lognormal,
    maxwell,
    multinomial,
    multivariate_normal,
    normal,
    pareto,
    permutation,
    poisson,
    rademacher,
    randint,
    rayleigh,
    t,
    truncated_normal,
    uniform,
    weibull_min,
    wishart,
)


def _method(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The distribution as a method that takes the key from its generator."""

    @wraps(function)
    def draw(self: Generator, *args: Any, **keywords: Any) -> Tensor:
        return function(self.next_key(), *args, **keywords)

    given = signature(function)
    first, *others = given.parameters.values()
    own = first.replace(name="self", annotation=first.empty)
    draw.__signature__ = given.replace(parameters=[own, *others])  # type: ignore[attr-defined]
    return draw


for _function in _DISTRIBUTIONS:
    setattr(Generator, _function.__name__, _method(_function))
setattr(Generator, "shuffle", _method(permutation))  # noqa: B010

__all__ = [
    "Generator",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "dirichlet",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generator",
    "geometric",
    "get_state",
    "gumbel",
    "key",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multinomial",
    "multivariate_normal",
    "next_key",
    "normal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "seed",
    "set_state",
    "shuffle",
    "split",
    "t",
    "truncated_normal",
    "uniform",
    "using",
    "weibull_min",
    "wishart",
]


if not TYPE_CHECKING:  # checkers know which names there are
    __getattr__ = refuse("weft.random")


def __dir__() -> list[str]:
    return sorted(__all__)
