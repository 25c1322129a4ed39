"""The user's line, and modules that load late."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np

import weft as wf
from weft.core.common.lazy import LazyModule
from weft.core.common.source import describe, user_position


def test_the_position_is_the_line_outside_weft():
    position = wf.tree_map(lambda _: user_position(1), [0])[0]
    assert position.code.co_filename == __file__
    assert "user_position(1)" in position.text
    assert describe(position) == f"{__file__}:{position.line}: {position.text}"
    assert describe(None) == "<unknown line>"


def test_a_call_from_inside_weft_is_put_down_to_the_user():
    x = wf.tensor(np.ones((200, 200), np.float32))
    y = x.mean()  # the mean
    assert "# the mean" in describe(y._impl.node.position)


def test_a_position_keeps_no_frame_alive():
    class Witness:
        pass

    def take():
        witness = Witness()
        return user_position(1), weakref.ref(witness)

    position, ref = take()
    gc.collect()
    assert position is not None and ref() is None


def test_a_lazy_module_loads_at_its_first_attribute():
    sys.modules.pop("this", None)
    module = LazyModule("colorsys")
    loaded = "colorsys" in sys.modules
    assert module.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)
    assert "colorsys" in sys.modules
    assert loaded is False or module.load() is sys.modules["colorsys"]
