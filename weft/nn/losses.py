"""Losses by their short names: numbers for how far predictions are from targets.

All take (prediction, target) and `reduction` ("mean", "sum" or "none"). `cross_entropy` takes
integer classes or probabilities, `label_smoothing` and `ignore_index`; its classes are axis 1.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft.core.common.peers import refuse as _refuse
from weft.ops.nn.ctc import ctc_loss as ctc
from weft.ops.nn.loss import (
    binary_cross_entropy as bce,
)
from weft.ops.nn.loss import (
    binary_cross_entropy_with_logits as bce_with_logits,
)
from weft.ops.nn.loss import (
    cosine_embedding_loss as cosine_embedding,
)
from weft.ops.nn.loss import (
    cosine_similarity,
    cross_entropy,
)
from weft.ops.nn.loss import (
    gaussian_nll_loss as gaussian_nll,
)
from weft.ops.nn.loss import (
    hinge_embedding_loss as hinge_embedding,
)
from weft.ops.nn.loss import (
    hinge_loss as hinge,
)
from weft.ops.nn.loss import (
    huber_loss as huber,
)
from weft.ops.nn.loss import (
    kl_div as kl,
)
from weft.ops.nn.loss import (
    l1_loss as l1,
)
from weft.ops.nn.loss import (
    margin_ranking_loss as margin_ranking,
)
from weft.ops.nn.loss import (
    mse_loss as mse,
)
from weft.ops.nn.loss import (
    multi_margin_loss as multi_margin,
)
from weft.ops.nn.loss import (
    multilabel_soft_margin_loss as multilabel_soft_margin,
)
from weft.ops.nn.loss import (
    nll_loss as nll,
)
from weft.ops.nn.loss import (
    poisson_nll_loss as poisson_nll,
)
from weft.ops.nn.loss import (
    smooth_l1_loss as smooth_l1,
)
from weft.ops.nn.loss import (
    soft_margin_loss as soft_margin,
)
from weft.ops.nn.loss import (
    triplet_margin_loss as triplet_margin,
)

__all__ = [
    "bce",
    "bce_with_logits",
    "cosine_embedding",
    "cosine_similarity",
    "cross_entropy",
    "ctc",
    "gaussian_nll",
    "hinge",
    "hinge_embedding",
    "huber",
    "kl",
    "l1",
    "margin_ranking",
    "mse",
    "multi_margin",
    "multilabel_soft_margin",
    "nll",
    "poisson_nll",
    "smooth_l1",
    "soft_margin",
    "triplet_margin",
]

if not _TYPE_CHECKING:  # checkers know which names there are
    __getattr__ = _refuse("weft.nn.losses")
