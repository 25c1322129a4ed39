"""`compile` removes the Python and never changes a bit; `explain` shows what became of the code.

You learn what one compiled call holds, that a changing number or batch size compiles nothing anew,
and that plain, compiled and differentiated runs agree bit for bit.
"""

import time

import weft as wf

traces = 0


def layer_norm_loss(x, scale, rate):
    """Layer norm, a nonlinearity and a mean: many ops, few kernels."""
    global traces
    traces += 1
    centred = x - wf.mean(x, axis=-1, keepdims=True)
    normal = centred * wf.rsqrt(wf.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
    return wf.mean(wf.tanh(normal * scale)) * rate


x = wf.random.normal(wf.random.key(0), (512, 256))
scale = wf.linspace(0.5, 1.5, 256)
step = wf.compile(wf.value_and_grad(layer_norm_loss, argnums=(0, 1)))

compiled = wf.compile(layer_norm_loss)
compiled.explain(x, scale, 0.5)

# The same bits, whether Python runs op by op or one native call does everything.
value, (x_gradient, scale_gradient) = step(x, scale, 0.5)
plain, (x_plain, scale_plain) = wf.value_and_grad(layer_norm_loss, argnums=(0, 1))(x, scale, 0.5)
assert value.item() == plain.item()
assert wf.all(x_gradient == x_plain).item() and wf.all(scale_gradient == scale_plain).item()

# Numbers are inputs: another rate neither traces nor compiles again.
before = traces
for rate in (0.1, 0.2, 0.3):
    step(x, scale, rate)
assert traces == before, "a changing number must not trace again"

# Other sizes are traced, but reuse machine code that was made for all sizes.
step(x[:100], scale, 0.5)
print(f"\n{step.stats.traces} traces, {step.stats.hits} calls without Python")
assert step.stats.traces == 2


def milliseconds(function, repeats=20):
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats * 1e3


eager = milliseconds(lambda: layer_norm_loss(x, scale, 0.5).item())
compiled(x, scale, 0.5)
native = milliseconds(lambda: compiled(x, scale, 0.5).item())
print(f"\nforward: {eager:.2f} ms plain, {native:.2f} ms compiled")
