"""Modules: what is a child, what is static, and that nothing changes in place."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from abc import abstractmethod
from typing import Generic, TypeVar

import numpy as np
import pytest

import weft as wf
from weft.errors import ArgumentError, MutationError, TreeError

nn = wf.nn
KEY = wf.random.key(0)


class Scaled(nn.Module):
    factor: wf.Tensor
    power: int = 1
    names: tuple[str, ...] = ()

    def __call__(self, x):
        return (x * self.factor) ** self.power


class Tower(nn.Module):
    blocks: list
    heads: dict
    size: int

    def __init__(self, size):
        self.size = size
        self.blocks = [Scaled(wf.full((size,), 2.0)), Scaled(wf.ones(size), 2)]
        self.heads = {"a": wf.zeros(size), "b": None}

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x + self.heads["a"]


class Wider(Tower):
    """Inherits the constructor, adds nothing."""


def test_tensors_and_modules_are_children_and_the_rest_is_structure():
    tower = Tower(3)
    assert wf.tree_paths(tower) == [".blocks[0].factor", ".blocks[1].factor", ".heads['a']"]
    leaves, structure = wf.tree_flatten(tower)
    again = wf.tree_unflatten(structure, leaves)
    assert type(again) is Tower and again.size == 3 and again.blocks[1].power == 2
    assert again.heads["a"] is tower.heads["a"]
    assert wf.tree_structure(again) == structure
    assert hash(wf.tree_structure(again)) == hash(structure)


def test_the_structure_tells_static_values_apart_even_where_python_does_not():
    def structure(power):
        return wf.tree_structure(Scaled(wf.ones(2), power))

    assert structure(2) == structure(2)
    assert structure(1) != structure(2)
    assert structure(1) != structure(True)
    assert structure(0.0) != structure(-0.0)
    assert wf.tree_structure(Wider(2)) != wf.tree_structure(Tower(2))


def test_the_structure_stays_whatever_the_leaves_become():
    tower = Tower(3)
    for make in (str, lambda t: True, lambda t: t.shape[0], lambda t: 0.5):
        changed = wf.tree_map(make, tower)
        assert wf.tree_structure(changed) == wf.tree_structure(tower)
    sizes = wf.tree_map(lambda t, m: t * m, tower, wf.tree_map(lambda t: 2.0, tower))
    assert sizes.blocks[0].factor.tolist() == [4.0] * 3


def test_a_module_does_not_change():
    scaled = Scaled(wf.ones(2))
    with pytest.raises(MutationError, match=r"Scaled: field 'power'.*\nhint: module.replace"):
        scaled.power = 3
    with pytest.raises(MutationError, match="does not change"):
        del scaled.power
    changed = scaled.replace(power=3, factor=wf.zeros(4))
    assert (changed.power, changed.factor.shape) == (3, (4,))
    assert (scaled.power, scaled.factor.shape) == (1, (2,))
    with pytest.raises(ArgumentError, match="no field is called depth"):
        scaled.replace(depth=1)


def test_a_replaced_field_becomes_a_child_when_it_gets_a_tensor():
    layer = nn.Linear(2, 3, bias=False, key=KEY)
    assert len(wf.tree_leaves(layer)) == 1
    assert len(wf.tree_leaves(layer.replace(bias=wf.zeros(3)))) == 2


def test_classes_may_be_generic_abstract_and_have_defaults():
    T = TypeVar("T")

    class Shape(nn.Module, Generic[T]):
        size: int = 2
        scale: wf.Tensor = nn.static(default=None)

        def __init__(self):
            pass

        @abstractmethod
        def __call__(self, x): ...

    class Round(Shape[int]):
        radius: float = 1.5

        def __call__(self, x):
            return x * self.radius

    with pytest.raises(TypeError, match="abstract"):
        Shape()
    shape = Round()
    assert (shape.replace(size=3).size, shape.radius) == (3, 1.5)
    assert wf.tree_map(lambda x: x, shape)(2.0) == 3.0


def test_mistakes_in_fields_are_told():
    class Undeclared(nn.Module):
        def __init__(self):
            self.size = 3

    class Absent(nn.Module):
        size: int

        def __init__(self):
            pass

    class Constant(nn.Module):
        table: wf.Tensor = nn.static()

    with pytest.raises(ArgumentError, match=r"'size' is no field of the module\nhint: declare it"):
        Undeclared()
    with pytest.raises(
        ArgumentError, match=r"Absent: __init__ leaves fields without a value.*size"
    ):
        Absent()
    with pytest.raises(TreeError, match="Constant: field 'table': is static, but holds Tensor"):
        Constant(wf.ones(2))
    with pytest.raises(
        TreeError, match="Apply: field 'function': a method of Embedding would hide"
    ):
        nn.Sequential(nn.Embedding(3, 2, key=KEY).logits)
    with pytest.raises(TreeError, match="'factor': holds 3 beside tensors or modules"):
        Scaled([wf.ones(2), 3])
    with pytest.raises(TreeError, match=r"'names': \['a'\] holds no tensors.*\nhint: a tuple"):
        Scaled(wf.ones(2), 1, ["a"])


def test_modules_are_copied_and_pickled():
    model = nn.MLP(2, 3, 1, key=KEY)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), copy.copy(model)):
        assert wf.tree_structure(again) == wf.tree_structure(model)
        np.testing.assert_array_equal(again.layers[0].weight, model.layers[0].weight)


def test_a_module_shows_its_fields_and_summary_counts_them():
    assert repr(nn.Linear(2, 3, key=KEY)) == "Linear(weight=float32[3, 2], bias=float32[3])"
    model = nn.Sequential(nn.Linear(2, 3, key=KEY), nn.relu, nn.BatchNorm(3))
    assert "Apply(function=relu)" in repr(model) and max(map(len, repr(model).split("\n"))) < 100
    told = nn.summary(model)
    assert "layers.0" in told and "15 parameters, 6 numbers in buffers" in told
    assert nn.parameter_count(model) == 15


def test_all_modules_of_a_tree_are_found_and_mapped():
    model = nn.TransformerEncoderLayer(4, 2, 8, key=KEY)
    kinds = [type(m).__name__ for m in nn.modules([model])]
    assert kinds[0] == "TransformerEncoderLayer" and kinds.count("Linear") == 4
    off = nn.inference(model)
    assert [m.inference for m in nn.modules(off) if isinstance(m, nn.Dropout)] == [True, True]
    assert not model.dropout.inference and off.linear1.weight is model.linear1.weight


def test_nn_and_optim_are_loaded_when_first_used():
    code = (
        "import sys, weft; assert not {'weft.nn', 'weft.optim'} & set(sys.modules)\n"
        "assert 'nn' in dir(weft); weft.nn.Linear; weft.optim.adam\n"
        "try: weft.nothing\nexcept AttributeError as e: assert 'nothing' in str(e)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Broken(nn.Module):
    weight: wf.Tensor | None = None

    @property
    def width(self):
        return self.weight.shape[-1]


def test_a_property_that_fails_says_why():
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'shape'"):
        _ = Broken().width
