"""Planning: where to put what on a mesh, and what it will cost, from shapes alone.

| file | what lives in it |
|---|---|
| `problem` | a trace as a sharding problem, and as JSON |
| `strategies` | the ways to run one call on a mesh |
| `facts` | who uses what and when, what touches memory |
| `groups` | which calls decide together |
| `evaluate` | time, collectives and memory of a placement |
| `program` | the integer program of a problem |
| `solver` | `SimpleSolver` |
| `plan` | `plan`: predict and place |
| `report` | `Plan`: the result as text, JSON and HTML |
"""

from weft.transforms.planning.plan import plan
from weft.transforms.planning.problem import (
    Problem,
    graph_to_json,
    numbered,
    problem_from_json,
    problem_of,
)
from weft.transforms.planning.report import Plan
from weft.transforms.planning.solver import SimpleSolver, Solution

__all__ = [
    "Plan",
    "Problem",
    "SimpleSolver",
    "Solution",
    "graph_to_json",
    "numbered",
    "plan",
    "problem_from_json",
    "problem_of",
]
