"""Compiled code on disk: found again, shared, bounded, and never run when a byte of it changed."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from weft.config import settings
from weft.runtime.cpu import code_cache as module
from weft.runtime.cpu import code_folder, fingerprint
from weft.runtime.cpu.code_cache import CodeCache, cached, compiler_fingerprint, key_of
from weft.runtime.cpu.code_folder import CodeFolder, default_folder
from weft.runtime.cpu.jit import Target

MIB = 1 << 20
HERE = Target("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon")
CODE = bytes(range(256)) * 3 + b"\n\n{}\n"


def name_for(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


KEY = name_for("one")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache" / "weft"


@pytest.fixture
def folder(path):
    return CodeFolder(str(path), 64 * MIB)


@pytest.fixture
def chosen(path):
    """The settings point to a folder of this test."""
    compiler_fingerprint()  # whose own entry belongs elsewhere
    before = settings.cache_dir, settings.cache_bytes
    settings.cache_dir, settings.cache_bytes = str(path), 64 * MIB
    module._made.clear()
    yield path
    settings.cache_dir, settings.cache_bytes = before
    module._made.clear()


def entries(path: Path) -> list[str]:
    return sorted(each.name for each in path.glob("*.code"))


def entry(path: Path, key: str = KEY) -> Path:
    return path / f"{key}.code"


def never() -> bytes:
    raise AssertionError("compiled again")


# -- finding code again


def test_what_was_compiled_is_found_again_by_this_process_and_by_the_next(chosen):
    assert cached("text", HERE, lambda: CODE) == CODE
    assert cached("text", HERE, never) == CODE
    counters = module.code_cache().counters
    assert (counters.hits, counters.loaded, counters.misses, counters.stored) == (1, 0, 1, 1)
    module._made.clear()  # as a new process
    assert cached("text", HERE, never) == CODE
    assert module.code_cache().counters.loaded == 1


def test_a_compilation_that_fails_leaves_nothing_behind(chosen):
    def fails():
        raise ValueError("bad text")

    with pytest.raises(ValueError, match="bad text"):
        cached("text", HERE, fails)
    assert entries(chosen) == [] and cached("text", HERE, lambda: CODE) == CODE


def test_the_key_changes_with_everything_that_decides_the_code(monkeypatch):
    others = [
        Target("x86_64-unknown-linux-gnu", HERE.cpu, HERE.features),
        Target(HERE.triple, "generic", HERE.features),
        Target(HERE.triple, HERE.cpu, "+neon,+sve"),
        Target(HERE.triple, HERE.cpu + "+", "neon"),  # the same letters, cut elsewhere
    ]
    keys = [key_of("text", target) for target in [HERE, *others]] + [key_of("text ", HERE)]
    monkeypatch.setattr(module, "compiler_fingerprint", lambda: "another compiler")
    keys.append(key_of("text", HERE))
    assert len(set(keys)) == len(keys) and all(len(key) == 64 for key in keys)


def test_the_fingerprint_covers_the_sources_and_versions_of_the_compiler(tmp_path, monkeypatch):
    folders = fingerprint.COMPILER_SOURCES
    assert fingerprint.hash_of(folders) == compiler_fingerprint()
    for place in folders:
        (tmp_path / place).mkdir(parents=True)
    source = tmp_path / "ops/functions/exponential.py"
    source.write_text("x = 1\n")
    monkeypatch.setattr(fingerprint, "_PACKAGE", str(tmp_path))
    seen = [fingerprint.hash_of(folders)]
    source.write_text("x = 2\n")
    seen.append(fingerprint.hash_of(folders))
    source.rename(tmp_path / "compiler/exponential.py")
    seen.append(fingerprint.hash_of(folders))
    monkeypatch.setattr(fingerprint.np, "__version__", "99")
    seen.append(fingerprint.hash_of(folders))
    assert len(set(seen)) == 4


def test_the_fingerprint_is_taken_anew_once_a_source_has_changed(tmp_path, monkeypatch, chosen):
    source = tmp_path / "package" / "a.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    monkeypatch.setattr(fingerprint, "_PACKAGE", str(source.parent))
    assert fingerprint.state_of(("",)) is None  # what changed just now may change again unseen
    monkeypatch.setattr(fingerprint, "_SETTLED_NS", 0)
    fresh = module.package_fingerprint.__wrapped__
    first = fresh()
    assert len(entries(chosen)) == 1
    monkeypatch.setattr(module, "hash_of", lambda folders: "not asked")
    assert fresh() == first
    times = source.stat()
    source.write_text("x = 2\n")
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fresh() == "not asked"


def test_the_memory_layer_is_bounded_and_forgets_what_was_used_longest_ago(path):
    store = CodeCache(str(path), 0, memory_bytes=30)
    for key in "abc":
        store.put(key, key.encode() * 10)
    assert store.get("a") == b"a" * 10
    store.put("d", b"d" * 10)
    assert store.get("b") is None and store.get("a") and store.get("c") and store.get("d")
    store.put("d", b"D" * 5)
    assert store._recent_bytes == 25
    store.put("e", b"e" * 31)
    assert store.get("e") is None and store._recent_bytes <= 30
    assert not path.exists()  # a limit of 0 keeps nothing on disk


def test_threads_share_a_cache(chosen):
    store = CodeCache(str(chosen), 64 * MIB, memory_bytes=500)
    wrong = []

    def use(number: int) -> None:
        for i in range(60):
            key, code = name_for(str(i % 20)), str(i % 20).encode() * 20
            found = store.get(key)
            if found is None:
                store.put(key, code)
            elif found != code:
                wrong.append((number, i))

    threads = [threading.Thread(target=use, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and store._recent_bytes == sum(map(len, store._recent.values())) <= 500
    assert store.counters.rejected == 0


# -- where it lies


def test_the_folder_is_the_setting_or_the_users_cache(monkeypatch, chosen, tmp_path):
    assert module.code_cache().folder.path == str(chosen)
    settings.cache_dir = ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert module.code_cache().folder.path == str(tmp_path / "xdg" / "weft")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == str(tmp_path / ".cache" / "weft")


def test_the_folder_and_its_files_are_for_this_user_alone(folder, path):
    folder.write(KEY, CODE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for each in path.iterdir():
        assert stat.S_IMODE(each.stat().st_mode) == 0o600, each


def test_an_entry_is_a_json_line_and_the_code(folder, path):
    folder.write(KEY, CODE)
    head, _, code = entry(path).read_bytes().partition(b"\n")
    told = json.loads(head)
    assert code == CODE and told["key"] == KEY and told["bytes"] == len(CODE)
    assert len(bytes.fromhex(told["mac"])) == 32
    assert sorted(each.name for each in path.iterdir()) == sorted([f"{KEY}.code", "key", "written"])


def test_nothing_is_kept_where_files_have_no_owners(path, monkeypatch):
    monkeypatch.setattr(code_folder, "_HAS_OWNERS", False)
    store = CodeCache(str(path), 64 * MIB)
    store.put(KEY, CODE)
    assert store.get(KEY) == CODE and not path.exists()


def refused(path: Path, caplog, reason: str) -> None:
    """A cache at `path` works without the disk and says once why."""
    store = CodeCache(str(path), 64 * MIB)
    with caplog.at_level(logging.WARNING, logger="weft"):
        assert store.get(KEY) is None
        store.put(KEY, CODE)
        assert store.get(KEY) == CODE
        assert store.folder.read(KEY) is None
    messages = [r.getMessage() for r in caplog.records if r.name == "weft"]
    assert len(messages) == 1 and str(path) in messages[0] and reason in messages[0], messages


def test_a_folder_of_another_user_is_refused(path, caplog, monkeypatch):
    path.mkdir(parents=True, mode=0o700)
    owner = os.geteuid()
    if owner == 0:
        os.chown(path, 12345, -1)
    else:  # only the superuser can give a folder away: be another user instead
        monkeypatch.setattr(code_folder.os, "geteuid", lambda: owner + 1)
    refused(path, caplog, "belongs to another user")
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_is_refused(path, caplog, mode):
    path.mkdir(parents=True)
    path.chmod(mode)
    refused(path, caplog, "other users may write to it")
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("there", [True, False])
def test_a_symbolic_link_is_refused(path, tmp_path, caplog, there):
    if there:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
    path.parent.mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    refused(path, caplog, "symbolic link")
    assert not there or list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_in_place_of_the_folder_is_refused(path, caplog):
    path.parent.mkdir()
    path.write_bytes(b"")
    refused(path, caplog, "Not a directory")


def failing(monkeypatch, number: int, only=lambda name: True) -> None:
    """Make every file that is opened for writing fail; the superuser ignores permissions."""
    real = os.open

    def opened(name, flags, *args, **keywords):
        if flags & (os.O_WRONLY | os.O_RDWR) and only(name):
            raise OSError(number, os.strerror(number))
        return real(name, flags, *args, **keywords)

    monkeypatch.setattr(code_folder.os, "open", opened)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_takes_no_files_is_refused(path, caplog, monkeypatch, number):
    failing(monkeypatch, number)
    refused(path, caplog, os.strerror(number))


def test_a_folder_without_permission_is_refused(path, caplog):
    if os.geteuid() == 0:
        pytest.skip("the superuser may write everywhere")
    path.mkdir(parents=True)
    path.chmod(0o500)
    refused(path, caplog, "Permission denied")


def test_what_is_there_is_still_read_when_nothing_more_fits(folder, path, caplog, monkeypatch):
    folder.write(KEY, CODE)
    failing(monkeypatch, errno.ENOSPC)
    with caplog.at_level(logging.WARNING, logger="weft"):
        for text in "two", "three":
            folder.write(name_for(text), CODE)
    assert len(caplog.records) == 1 and "No space left" in caplog.records[0].getMessage()
    assert folder.read(KEY) == CODE and entries(path) == [f"{KEY}.code"]


def test_a_write_that_breaks_off_leaves_no_file(folder, path, caplog, monkeypatch):
    folder.write(KEY, CODE)

    def fails(*args, **keywords):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(code_folder.os, "rename", fails)
    folder.write(name_for("two"), CODE)
    assert sorted(each.name for each in path.iterdir()) == sorted([f"{KEY}.code", "key", "written"])


def test_a_folder_that_was_deleted_is_made_again(folder, path):
    folder.write(KEY, CODE)
    for each in path.iterdir():
        each.unlink()
    path.rmdir()
    assert folder.read(KEY) is None
    folder.write(KEY, CODE)
    assert folder.read(KEY) == CODE


# -- what changed is never used


def header_length(path: Path) -> int:
    return entry(path).read_bytes().index(b"\n") + 1


def test_a_flipped_bit_anywhere_is_a_miss_and_the_entry_is_removed(folder, path):
    folder.write(KEY, CODE[:64])
    good = entry(path).read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        entry(path).write_bytes(bad)
        assert folder.read(KEY) is None, position
        assert not entry(path).exists(), position
    assert folder.counters.rejected == len(good)
    folder.write(KEY, CODE)
    assert folder.read(KEY) == CODE


def test_an_entry_cut_short_or_extended_is_a_miss(folder, path):
    folder.write(KEY, CODE)
    good = entry(path).read_bytes()
    head = header_length(path)
    for bad in [good[:n] for n in (0, 1, head - 1, head, head + 1, len(good) - 1)] + [
        good + b"\0",
        good + good,
        b"\n" + good,
        good.replace(b'", "', b'","'),
        good[head:],
    ]:
        entry(path).write_bytes(bad)
        assert folder.read(KEY) is None and not entry(path).exists()


def test_a_header_that_says_the_same_in_other_words_is_a_miss(folder, path):
    folder.write(KEY, CODE)
    head, _, code = entry(path).read_bytes().partition(b"\n")
    told = json.loads(head)
    for text in [
        json.dumps(told, separators=(",", ":")),
        json.dumps(told) + " ",
        json.dumps({**told, "mac": told["mac"].upper()}),
        json.dumps({**told, "more": 1}),
    ]:
        assert text.encode() != head
        entry(path).write_bytes(text.encode() + b"\n" + code)
        assert folder.read(KEY) is None


def test_an_entry_under_another_name_or_from_another_user_is_a_miss(folder, path, tmp_path):
    folder.write(KEY, CODE)
    other = name_for("other")
    entry(path, other).write_bytes(entry(path).read_bytes())
    entry(path, other).chmod(0o600)
    assert folder.read(other) is None
    theirs = CodeFolder(str(tmp_path / "theirs"), 64 * MIB)
    theirs.write(KEY, b"their code")
    entry(path).write_bytes(entry(tmp_path / "theirs").read_bytes())
    assert folder.read(KEY) is None and folder.counters.rejected == 2


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "open"])
def test_what_is_no_plain_private_file_is_no_entry(folder, path, tmp_path, kind):
    folder.write(KEY, CODE)
    place = entry(path)
    if kind == "open":
        place.chmod(0o666)
    else:
        place.rename(tmp_path / "real")
        if kind == "link":
            place.symlink_to(tmp_path / "real")
        elif kind == "pipe":
            os.mkfifo(place)
        else:
            place.mkdir()
    assert folder.read(KEY) is None and folder.counters.rejected == 1
    assert place.exists() == (kind == "folder")


@pytest.mark.parametrize("kind", ["missing", "short", "empty", "long", "changed", "link", "open"])
def test_a_key_that_is_lost_or_not_to_be_trusted_is_replaced(folder, path, tmp_path, kind):
    folder.write(KEY, CODE)
    place = path / "key"
    old = place.read_bytes()
    if kind == "missing":
        place.unlink()
    elif kind == "link":
        place.rename(tmp_path / "real")
        place.symlink_to(tmp_path / "real")
    elif kind == "open":
        place.chmod(0o644)
    else:
        flipped = bytes([old[0] ^ 1]) + old[1:]
        place.write_bytes(
            {"short": old[:31], "empty": b"", "long": old + b"x", "changed": flipped}[kind]
        )
    assert folder.read(KEY) is None and entries(path) == []
    new = place.read_bytes()
    assert (
        not place.is_symlink()
        and len(new) == 32
        and new != old
        and stat.S_IMODE(place.lstat().st_mode) == 0o600
    )
    folder.write(KEY, CODE)
    assert folder.read(KEY) == CODE == CodeFolder(str(path), 64 * MIB).read(KEY)


def test_a_key_that_cannot_be_replaced_costs_a_warning(path, caplog):
    (path / "key").mkdir(parents=True)
    path.chmod(0o700)
    refused(path, caplog, "")


# -- the bound


def test_entries_used_longest_ago_go_first_and_the_bound_holds(path):
    limit = 64 * 4096
    folder = CodeFolder(str(path), limit)
    names = [name_for(str(i)) for i in range(300)]
    for i, name in enumerate(names):
        folder.write(name, b"x" * 3000)
        os.utime(entry(path, name), ns=(i, i))
        assert folder.read(names[0]) == b"x" * 3000  # in use, so it stays
        assert len(entries(path)) * 4096 <= limit
    kept = [i for i, name in enumerate(names) if entry(path, name).exists()]
    assert kept == [0, *range(300 - len(kept) + 1, 300)] and len(kept) > 40
    assert folder.counters.evicted == 300 - len(kept)


def test_sweeps_are_rare(path, monkeypatch):
    folder = CodeFolder(str(path), 64 * 4096)
    sweeps = []
    real = CodeFolder._sweep
    monkeypatch.setattr(CodeFolder, "_sweep", lambda s, f: (sweeps.append(1), real(s, f))[1])
    for i in range(90):
        folder.write(name_for(str(i)), b"x")
    assert len(sweeps) == 10  # after each eighth of the limit, and one page


def test_code_that_would_fill_the_folder_is_not_kept(path):
    folder = CodeFolder(str(path), 64 * 4096)
    folder.write(KEY, b"x" * 8 * 4096)
    assert not path.exists() and folder.counters.stored == 0
    folder.write(KEY, b"x" * 7 * 4096)
    assert folder.counters.stored == 1


def test_a_sweep_removes_what_dead_writers_left(path):
    folder = CodeFolder(str(path), 64 * 4096)
    folder.write(KEY, CODE)
    for name, age in ((".old", 7200), (".young", 60)):
        (path / name).write_bytes(b"half")
        os.utime(path / name, (time.time() - age,) * 2)
    for i in range(12):
        folder.write(name_for(str(i)), CODE)
    assert not (path / ".old").exists() and (path / ".young").exists() and (path / "key").exists()


def test_a_sweep_bears_other_processes_that_remove_files(path, monkeypatch):
    folder = CodeFolder(str(path), 64 * 4096)
    for i in range(60):
        folder.write(name_for(str(i)), CODE)
    gone = entries(path)[::2]
    real = os.listdir

    def listed(where):
        names = real(where)
        for name in gone:
            (path / name).unlink()
        return [*names, "vanished.code"]

    monkeypatch.setattr(code_folder.os, "listdir", listed)
    with code_folder._opened(folder.path) as number:
        folder._sweep(number)
    folder.write(KEY, CODE)
    assert folder.read(KEY) == CODE


SHARER = """
import hashlib, sys
sys.path.insert(0, sys.argv[4])  # the module alone: all of weft takes longer to import
from code_folder import CodeFolder
path, limit, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
folder = CodeFolder(path, limit)
wrong = 0
for i in range(200):
    name = str((i * 7 + seed * 13) % 60)
    key = hashlib.sha256(name.encode()).hexdigest()
    code = (name * 700).encode()
    found = folder.read(key)
    if found is None:
        folder.write(key, code)
    elif found != code:
        wrong += 1
print(wrong, folder.counters.rejected, folder.counters.evicted, folder._writes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("pages", [40, 4000])
def test_eight_processes_share_a_folder(path, pages):
    source = str(Path(code_folder.__file__).parent)
    command = [sys.executable, "-c", SHARER, str(path), str(pages * 4096)]
    running = [
        subprocess.Popen([*command, str(seed), source], stdout=subprocess.PIPE, text=True)
        for seed in range(8)
    ]
    results = [process.communicate()[0].split() for process in running]
    evicted = sum(int(result[2]) for result in results)
    assert [(wrong, rejected, writes) for wrong, rejected, _, writes in results] == [
        ("0", "0", "True")
    ] * 8
    assert (evicted > 0) == (pages == 40)
    assert len(entries(path)) * 4096 <= pages * 4096
    assert not [each for each in path.iterdir() if each.name.startswith(".")]
