"""Pictures: a function's graph as a page, a tensor's pieces as a grid of boxes.

| file | what lives in it |
|---|---|
| `kernels` | which calls become one kernel, and what a program costs |
| `scene` | a trace as boxes in boxes, with lines between them |
| `layers` | the rows that boxes are drawn in |
| `page` | the page of a graph: one file with its own style and script |
| `pieces` | who holds what of a tensor |
| `terminal` | pieces as text, with colours where there are any |
| `boxes` | pieces as HTML |

Beside them lie `graph.css` and `graph.js`, which become part of every page.
"""
