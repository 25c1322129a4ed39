"""One list of settings, each with a variable; a bad value says which."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import weft as wf
from weft.config import Settings, from_environment, settings, show
from weft.errors import ConfigError


def test_show_prints_every_setting_with_value_variable_and_meaning(capsys):
    text = show()
    assert capsys.readouterr().out == text + "\n"
    for name in Settings.__dataclass_fields__:
        (row,) = [row for row in text.splitlines() if row.startswith(f"{name} ")]
        assert f"WEFT_{name.upper()}" in row and str(getattr(settings, name)) in row
    assert wf.config.show is show


def test_a_changed_setting_is_marked(capsys):
    before = settings.flush_limit
    settings.flush_limit = 77
    try:
        assert "77 " in show() and f"(default {before})" in show()
    finally:
        settings.flush_limit = before


def test_variables_are_read():
    made = from_environment({"WEFT_FLUSH_LIMIT": "12", "WEFT_SMALL_ELEMENTS": "0", "HOME": "x"})
    assert made.flush_limit == 12 and made.small_elements == 0


@pytest.mark.parametrize("text", ["", "many", "-3", "1.5", "0x10", "²", "1e3", " 5"])
def test_a_bad_variable_is_named(text):
    with pytest.raises(ConfigError, match="WEFT_FLUSH_LIMIT"):
        from_environment({"WEFT_FLUSH_LIMIT": text})


@pytest.mark.parametrize("value", [-1, 1.5, "3", None, True, 0])
def test_a_bad_value_is_refused_and_changes_nothing(value):
    before = settings.flush_limit
    with pytest.raises(ConfigError, match="flush_limit must be an integer of at least 1"):
        settings.flush_limit = value
    assert settings.flush_limit == before


@pytest.mark.parametrize(("name", "most"), [("threads", sys.maxsize), ("logical_devices", 65536)])
def test_a_value_that_no_machine_has_is_refused(name, most):
    with pytest.raises(ConfigError, match=f"{name} must be at most {most}"):
        from_environment({f"WEFT_{name.upper()}": str(most + 1)})
    assert getattr(from_environment({f"WEFT_{name.upper()}": str(most)}), name) == most


def test_a_text_is_read_as_it_is():
    assert from_environment({"WEFT_CACHE_DIR": "/a folder/12"}).cache_dir == "/a folder/12"
    assert from_environment({"WEFT_CACHE_DIR": ""}).cache_dir == ""


@pytest.mark.parametrize("value", [3, None, b"here", "a\0b"])
def test_a_bad_text_is_refused_and_changes_nothing(value):
    before = settings.cache_dir
    with pytest.raises(ConfigError, match="cache_dir must be a text"):
        settings.cache_dir = value
    assert settings.cache_dir == before


def test_a_misspelt_setting_is_refused_with_the_list():
    with pytest.raises(ConfigError, match="small_elements, flush_limit"):
        settings.flush_limt = 3


def test_other_variables_are_left_alone_but_shown(monkeypatch, capsys):
    monkeypatch.setenv("WEFT_TEST_SEED", "not a number")
    monkeypatch.setenv("WEFT_FLUSH_LIMT", "3")
    assert from_environment(os.environ).flush_limit == Settings().flush_limit
    text = show()
    assert "WEFT_FLUSH_LIMT is set, but is no setting" in text
    assert "WEFT_TEST_SEED" not in text


def test_a_bad_variable_stops_the_import_with_the_reason():
    done = subprocess.run(
        [sys.executable, "-c", "import weft"],
        env={**os.environ, "WEFT_LOGICAL_DEVICES": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "ConfigError: config: logical_devices must be an integer of at least 1" in done.stderr


def test_variables_reach_the_process():
    code = (
        "import weft as wf;"
        "print(wf.config.settings.logical_devices, wf.zeros(1, device='cpu:8').device)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "WEFT_LOGICAL_DEVICES": "9", "WEFT_TEST_SEED": "junk"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["9", "cpu:8"], done.stderr
