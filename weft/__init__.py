"""weft: NumPy's feel, transforms that compose without exception, and one definition per op.

`import weft as wf`. Everything here is re-exported; `wf.linalg`, `wf.fft` and `wf.random` are namespaces,
`wf.errors` has the exceptions and `wf.config` the settings.
"""

from weft.core.common.context import *
from weft.core.common.device import *
from weft.core.common.dtypes import *
from weft.core.common.trees import *
from weft.core.common.types import *
from weft.core.graph.trace import *
from weft.core.tensor.tensor import *
from weft.core.tensor.tracing import *
from weft.ops.dispatch import *
from weft.ops.activation import *
from weft.ops.arithmetic import *
from weft.ops.bitwise import *
from weft.ops.branches import *
from weft.ops.comparison import *
from weft.ops.complex_parts import *
from weft.ops.contraction import *
from weft.ops.convolution import *
from weft.ops.creation import *
from weft.ops.custom_op import *
from weft.ops.diagonals import *
from weft.ops.einsum import *
from weft.ops.elementary import *
from weft.ops.gamma_functions import *
from weft.ops.index_update import *
from weft.ops.indexing import *
from weft.ops.loops import *
from weft.ops.loss import *
from weft.ops.manipulation import *
from weft.ops.multi_output import *
from weft.ops.named_axis import *
from weft.ops.normalization import *
from weft.ops.order import *
from weft.ops.padding import *
from weft.ops.pooling import *
from weft.ops.random_draws import *
from weft.ops.ranges import *
from weft.ops.reduction import *
from weft.ops.resample import *
from weft.ops.rounding import *
from weft.ops.search import *
from weft.ops.selection import *
from weft.ops.special_functions import *
from weft.ops.statistics import *
from weft.ops.view.broadcast import *
from weft.ops.view.join import *
from weft.ops.view.reshape import *
from weft.ops.view.slice import *
from weft.ops.view.transpose import *
from weft.ops.view.window import *
from weft.core.autograd.imperative import *
from weft.core.sharding import *
from weft.ops.norms import *
from weft.runtime.registry import *
from weft.runtime.report import *
from weft.transforms import *
from weft.namespace_info import *
from weft import config as config
from weft import errors as errors
from weft import fft as fft
from weft import linalg as linalg
from weft import random as random

__version__ = "0.1.0"
