"""Optimisers: `wf.optim`. Gradient transformations that chain, with all state explicit.

    optimizer = optim.adamw(optim.schedules.warmup_cosine(3e-4, 100, 5000), mask=optim.matrices)
    state = optimizer.init(params)

    @wf.compile
    def step(params, state, x, y):
        value, gradients = wf.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return value, optim.apply(params, updates), state

Schedules read a counter in the state: a compiled step is compiled once. All updates of all
parameters are one or two parallel regions.

| file | what lives in it |
|---|---|
| `optimizers` | `sgd`, `adam`, `adamw`, `lion`, `rmsprop`, `adagrad`, `adadelta`, `lamb`, … |
| `factored` | `adafactor` |
| `lbfgs` | `lbfgs`, and `minimize`, which searches along each step |
| `muon` | `muon`, `orthogonalize`, `split`: one optimiser for some parameters, one for others |
| `transform` | `Transform`, `chain`, `apply`, `stateless`, `matrices`, `global_norm` |
| `steps` | parts: `clip_by_global_norm`, `add_momentum`, `scale_by_adam`, `scale_by_rate`, … |
| `relatives` | parts of Adam's relatives: `scale_by_radam`, `scale_by_trust_ratio`, … |
| `schedules` | rates that change: `cosine`, `warmup_cosine`, `one_cycle`, `piecewise`, … |
| `around` | `accumulate`, `loss_scaled`, `ema`, `all_finite` |
| `plateau` | `reduce_on_plateau`: a rate that falls when a loss no longer does |
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft.core.common.peers import refuse as _refuse
from weft.nn.policy import Policy
from weft.optim import schedules as schedules
from weft.optim.around import (
    AccumulateState,
    Ema,
    EmaState,
    LossScaleState,
    accumulate,
    all_finite,
    ema,
    loss_scaled,
)
from weft.optim.factored import AdafactorState, adafactor
from weft.optim.lbfgs import LbfgsState, MinimizeResult, lbfgs, minimize, scale_by_lbfgs
from weft.optim.muon import SplitState, muon, orthogonalize, scale_by_muon, split
from weft.optim.optimizers import (
    adadelta,
    adagrad,
    adam,
    adamax,
    adamw,
    lamb,
    lion,
    nadam,
    radam,
    rmsprop,
    sgd,
)
from weft.optim.plateau import PlateauState, reduce_on_plateau
from weft.optim.relatives import (
    AdadeltaState,
    NadamState,
    SumState,
    scale_by_adadelta,
    scale_by_adagrad,
    scale_by_adamax,
    scale_by_nadam,
    scale_by_radam,
    scale_by_trust_ratio,
)
from weft.optim.steps import (
    AdamState,
    MomentumState,
    RateState,
    SquareState,
    add_decayed_weights,
    add_momentum,
    clip_by_global_norm,
    clip_by_value,
    scale,
    scale_by_adam,
    scale_by_lion,
    scale_by_rate,
    scale_by_rms,
)
from weft.optim.transform import Transform, apply, chain, global_norm, matrices, stateless

__all__ = [
    "AccumulateState",
    "AdadeltaState",
    "AdafactorState",
    "AdamState",
    "Ema",
    "EmaState",
    "LbfgsState",
    "LossScaleState",
    "MinimizeResult",
    "MomentumState",
    "NadamState",
    "PlateauState",
    "Policy",
    "RateState",
    "SplitState",
    "SquareState",
    "SumState",
    "Transform",
    "accumulate",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "add_decayed_weights",
    "add_momentum",
    "all_finite",
    "apply",
    "chain",
    "clip_by_global_norm",
    "clip_by_value",
    "ema",
    "global_norm",
    "lamb",
    "lbfgs",
    "lion",
    "loss_scaled",
    "matrices",
    "minimize",
    "muon",
    "nadam",
    "orthogonalize",
    "radam",
    "reduce_on_plateau",
    "rmsprop",
    "scale",
    "scale_by_adadelta",
    "scale_by_adagrad",
    "scale_by_adam",
    "scale_by_adamax",
    "scale_by_lbfgs",
    "scale_by_lion",
    "scale_by_muon",
    "scale_by_nadam",
    "scale_by_radam",
    "scale_by_rate",
    "scale_by_rms",
    "scale_by_trust_ratio",
    "schedules",
    "sgd",
    "split",
    "stateless",
]

if not _TYPE_CHECKING:  # checkers know which names there are
    __getattr__ = _refuse("weft.optim")
