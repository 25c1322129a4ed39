"""Ops that move elements without computing; most give views that share memory.

| file | what lives in it |
|---|---|
| `reshape` | reshape, view, squeeze, expand_dims, flatten |
| `transpose` | permute_dims, transpose, swapaxes, moveaxis |
| `broadcast` | broadcast_to, broadcast_arrays |
| `slice` | strided slices, narrow, flip |
| `join` | pad, concat, stack |
| `window` | sliding windows and their overlapping sum |
"""
