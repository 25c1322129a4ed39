"""Tensors feel like NumPy's arrays: views, assignment, promotion, and no silent surprises.

You learn how views reach their base, how dtypes promote, and how arrays cross the border to NumPy.
"""

import numpy as np

import weft as wf

x = wf.arange(12.0).reshape(3, 4)
print(x)

# Basic indexing gives a view: writing to it changes the base, as in NumPy.
row, corner = x[0], x[1:, 2:]
row[1] = 100.0
corner += 0.5
assert x[0, 1].item() == 100.0
assert x[2, 3].item() == 11.5

# Indexing by integers or a mask gives a copy; `at` assigns without changing anything.
large = x[x > 8]
large[0] = -1.0
assert -1.0 not in x.tolist()[0]
moved = x.at[:, 0].set(7.0)
assert moved[:, 0].tolist() == [7.0, 7.0, 7.0] and x[0, 0].item() == 0.0

# A Python number never widens a tensor; mixed tensors promote as the array API says.
half = wf.ones(3, dtype=wf.float16)
assert (half * 2.5).dtype == wf.float16
assert (half + wf.ones(3, dtype=wf.float64)).dtype == wf.float64

# Shapes broadcast; einsum and reductions keep their names.
table = wf.einsum("i,j->ij", wf.arange(1, 4), wf.arange(1, 5))
assert table.shape == (3, 4) and table.sum().item() == 60
assert wf.allclose(wf.mean(x - x.mean(axis=0), axis=0), wf.zeros(4), atol=1e-6)

# Both ways to NumPy without a copy, by DLPack or directly.
theirs = np.linspace(0, 1, 5)
ours = wf.from_dlpack(theirs)
theirs[0] = 42.0
assert ours[0].item() == 42.0
assert np.from_dlpack(ours).base is not None
assert isinstance(np.ones(3) * half, wf.Tensor)

# A mistake is reported at its line, with the values that do not fit.
try:
    wf.ones((2, 3)) @ wf.ones((4, 5))
except wf.errors.ShapeError as error:
    print(f"\na mistake:\n{error}")
else:
    raise AssertionError("a product of (2, 3) and (4, 5) must be refused")

print(f"\n{x.shape} {x.dtype}: sum {x.sum().item()}, views and copies behave")
