"""weft: NumPy's feel, transforms that compose without exception, and one definition per op.

`import weft as wf`. Everything here is re-exported; `wf.linalg`, `wf.fft` and `wf.random` are
namespaces, `wf.errors` has the exceptions and `wf.config` the settings. `wf.checkpoints` and
`wf.data` are loaded when they are first used.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from weft.core.common.context import *
from weft.core.common.device import *
from weft.core.common.dtypes import *
from weft.core.common.peers import hint_for_name as _hint_for_name
from weft.core.common.trees import *
from weft.core.common.types import *
from weft.core.graph.trace import *
from weft.core.tensor.tensor import *
from weft.core.tensor.tracing import *
from weft.ops.dispatch import *
from weft.ops.nn.activation import *
from weft.ops.elementwise.arithmetic import *
from weft.ops.elementwise.bitwise import *
from weft.ops.control.branches import *
from weft.ops.elementwise.comparison import *
from weft.ops.elementwise.complex_parts import *
from weft.ops.contraction import *
from weft.ops.nn.convolution import *
from weft.ops.creation import *
from weft.ops.placement import *
from weft.ops.curves import *
from weft.ops.control.custom_op import *
from weft.ops.diagonals import *
from weft.ops.einsum import *
from weft.ops.elementwise.elementary import *
from weft.ops.facts import *
from weft.ops.elementwise.gamma_functions import *
from weft.ops.histograms import *
from weft.ops.index_update import *
from weft.ops.indexing import *
from weft.ops.control.loops import *
from weft.ops.nn.loss import *
from weft.ops.nn.ctc import *
from weft.ops.manipulation import *
from weft.ops.multi_output import *
from weft.ops.named_axis import *
from weft.ops.nn.normalization import *
from weft.ops.order import *
from weft.ops.packing import *
from weft.ops.padding import *
from weft.ops.nn.bags import *
from weft.ops.nn.pooling import *
from weft.ops.nn.unpooling import *
from weft.ops.random.draws import *
from weft.ops.ranges import *
from weft.ops.reduction import *
from weft.ops.nn.resample import *
from weft.ops.elementwise.rounding import *
from weft.ops.search import *
from weft.ops.selection import *
from weft.ops.dynamic import *
from weft.ops.elementwise.special_functions import *
from weft.ops.quantiles import *
from weft.ops.statistics import *
from weft.ops.exponential_sums import *
from weft.ops.view.broadcast import *
from weft.ops.view.join import *
from weft.ops.view.reshape import *
from weft.ops.view.slice import *
from weft.ops.view.transpose import *
from weft.ops.view.window import *
from weft.core.autograd.imperative import *
from weft.core.sharding import *
from weft.ops.norms import *
from weft.ops.communication.collectives import *
from weft.ops.communication.layout import *
from weft.runtime.registry import *
from weft.runtime.report import *
from weft.transforms import *
from weft.namespace_info import *
from weft.polynomial import *
from weft.compiler import install as _install
from weft import config as config
from weft import errors as errors
from weft import fft as fft
from weft import linalg as linalg
from weft import neighbours as neighbours
from weft import random as random

if _TYPE_CHECKING:
    from weft import checkpoints as checkpoints
    from weft import data as data
    from weft import nn as nn
    from weft import optim as optim
    from weft.safetensors import load_safetensors as load_safetensors
    from weft.safetensors import save_safetensors as save_safetensors
    from weft.transforms.planning import Plan as Plan
    from weft.transforms.planning import plan as plan
    from weft.transforms.tune import TuningReport as TuningReport
    from weft.transforms.tune import tune as tune

__version__ = "0.1.0"

# Loaded when first used: namespaces, and functions with the module they live in.
_LATER = ("checkpoints", "data", "nn", "optim")
_LATER_FUNCTIONS = {
    "Plan": "transforms.planning",
    "TuningReport": "transforms.tune",
    "load_safetensors": "safetensors",
    "plan": "transforms.planning",
    "save_safetensors": "safetensors",
    "tune": "transforms.tune",
}


def __getattr__(name: str) -> _Any:
    if name in _LATER:
        return _import_module(f"weft.{name}")
    if name in _LATER_FUNCTIONS:
        return getattr(_import_module(f"weft.{_LATER_FUNCTIONS[name]}"), name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}{_hint_for_name(name)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_LATER_FUNCTIONS})
