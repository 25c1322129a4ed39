"""Random numbers: bits as a function of key and position, and distributions made of them.

| file | what lives in it |
|---|---|
| `bits` | the generator Threefry-2x32 as an op; its integers as floats |
| `state` | keys, and the global generator |
| `continuous` | uniform, normal and other continuous distributions |
| `gamma` | the gamma family, and normal vectors |
| `discrete` | integers, coins, categories, permutations, choices |
| `counts` | Poisson, binomial, multinomial and geometric counts |
| `draws` | draws without a key |
| `redrawn` | the same draws again in rules for derivatives |
"""
