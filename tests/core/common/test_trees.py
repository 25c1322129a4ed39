"""Trees: nested containers, registered classes, and errors that name what differs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

import weft as wf
from weft.errors import ArgumentError, TreeError


class Pair(NamedTuple):
    left: object
    right: object


@wf.register_dataclass
@dataclass(frozen=True)
class Layer:
    weight: object
    bias: object
    name: str = field(default="layer", metadata={"static": True})


class Box:
    def __init__(self, content):
        self.content = content


wf.register_tree(Box, lambda box: ((box.content,), None), lambda _, children: Box(*children))


@pytest.mark.parametrize(
    "tree",
    [1, None, (), [], {}, (1, [2, {"a": 3}]), Pair(1, (2,)), Layer(1, [2]), {"b": 1, "a": None}],
    ids=str,
)
def test_a_tree_is_its_leaves_and_its_structure(tree):
    leaves, structure = wf.tree_flatten(tree)
    assert wf.tree_unflatten(structure, leaves) == tree
    assert wf.tree_leaves(tree) == leaves
    assert wf.tree_structure(tree) == structure
    assert isinstance(structure, wf.PyTreeDef)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        ({1: "a", "b": [2, 0.0]}, {"b": [2, 0.0], 1: "a"}, {1: "a", "b": [2, -0.0]}),
        (1, 1, True),
        (("a", 1.0), ("a", 1.0), ("a", 1)),
        ({"s": {1, 2}}, {"s": {1, 2}}, {"s": {1, 3}}),
    ],
)
def test_constant_parts_are_equal_if_they_are_exactly_the_same(one, same, other):
    structure = wf.tree_structure(Layer(1, 2, name=one))
    assert structure == wf.tree_structure(Layer(3, 4, name=same))
    assert structure != wf.tree_structure(Layer(3, 4, name=other))
    assert str(one) in str(structure)
    assert pickle.loads(pickle.dumps(structure)) == structure
    assert wf.tree_map(lambda x: x + 1, Layer(1, 2, name=one)) == Layer(2, 3, name=one)


def test_map_applies_to_matching_leaves():
    tree = {"x": (1, Layer(2, 3)), "y": None}
    doubled = wf.tree_map(lambda a, b: a + b, tree, tree)
    assert doubled == {"x": (2, Layer(4, 6)), "y": None}
    assert wf.tree_map(lambda box: box, Box(5)).content == 5


def test_paths_are_readable():
    assert wf.tree_paths({"layers": [Layer(1, 2)]}) == [
        "['layers'][0].weight",
        "['layers'][0].bias",
    ]


def test_a_map_may_see_the_path_of_each_leaf():
    tree = {"a": Layer(1, 2), "b": (3, [4])}
    shown = wf.tree_map_with_path(lambda path, x, y: f"{path}={x + y}", tree, tree)
    assert wf.tree_leaves(shown) == [
        "['a'].weight=2",
        "['a'].bias=4",
        "['b'][0]=6",
        "['b'][1][0]=8",
    ]
    is_leaf = {"is_leaf": lambda x: isinstance(x, Layer)}
    assert wf.tree_paths(tree, **is_leaf) == ["['a']", "['b'][0]", "['b'][1][0]"]
    assert wf.tree_map_with_path(lambda path, x: path, tree, **is_leaf)["a"] == "['a']"
    with pytest.raises(TreeError, match="tree_map_with_path: tree 1 differs from tree 0"):
        wf.tree_map_with_path(lambda *row: row, tree, {"a": 1})
    for op in ("tree_map", "tree_map_with_path"):
        with pytest.raises(ArgumentError, match=f"{op}: is_leaf must be a function, got 3"):
            getattr(wf, op)(lambda *row: row, tree, is_leaf=3)


def test_static_fields_belong_to_the_structure():
    assert wf.tree_structure(Layer(1, 2, "a")) != wf.tree_structure(Layer(1, 2, "b"))
    assert wf.tree_leaves(Layer(1, 2, "a")) == [1, 2]


def test_is_leaf_stops_the_descent():
    assert wf.tree_leaves([(1, 2), 3], is_leaf=lambda x: isinstance(x, tuple)) == [(1, 2), 3]


@pytest.mark.parametrize(
    ("attempt", "text"),
    [
        (lambda: wf.tree_map(lambda a, b: a, (1, 2), (1, 2, 3)), "tree 1 differs"),
        (lambda: wf.tree_map(lambda a, b: a, {"a": 1}, {"b": 1}), "tree 1 differs"),
        (lambda: wf.tree_unflatten(wf.tree_structure((1, 2)), [1]), "2 leaves, got 1"),
        (lambda: wf.register_dataclass(Layer), "Layer is registered already"),
        (lambda: wf.register_dataclass(Box), "Box.* is no dataclass"),
        (lambda: wf.tree_unflatten("no structure", [1]), "no structure of a tree"),
        (lambda: wf.register_tree(Box, list, list), "Box is registered already"),
    ],
)
def test_what_does_not_match_is_named(attempt, text):
    with pytest.raises(TreeError, match=text):
        attempt()


def test_tensor_leaves_are_only_the_tensors():
    x = wf.ones(2)
    assert wf.tensor_leaves({"a": [1, x], "b": ("text", Layer(x, None))}) == [x, x]


LATE = """
import atexit
@atexit.register
def late():
    for use in (wf.compile, wf.grad, wf.vmap):
        try:
            use(lambda x: wf.sum(x["a"]))({"a": wf.ones(3)})
        except wf.errors.TreeError as error:
            print("hint: what uses weft at exit" in str(error))
import weft as wf
@atexit.register
def in_time():
    print(wf.compile(lambda x: wf.sum(x["a"]))({"a": wf.ones(3)}).item())
"""


def test_trees_are_not_taken_for_leaves_once_python_has_let_the_registry_go():
    done = subprocess.run(
        [sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["3.0", "True", "True", "True"], done.stderr
