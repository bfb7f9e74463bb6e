# SPDX-License-Identifier: Apache-2.0
"""The build cache under faults: kills, full disks, damage, other users, and waiting."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from builds import TOML, TWICE, forget
from faults import Faults

from pytest_udftorch.errors import CacheError, CompilerStoppedError, SourceError, UdfError
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.toolchain import cache as cache_module
from pytest_udftorch.swap.toolchain import compiler as toolchain
from pytest_udftorch.swap.toolchain.cache import cache_folder, fill
from pytest_udftorch.swap.toolchain.shared_library import build_library

KILLED = Path(__file__).parents[1] / "kills.py"

slow = pytest.mark.slow


@pytest.fixture
def library(tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "udf.toml").write_text(TOML + 'scalar = "udf_expf"\n')
    (folder / "e.c").write_text(TWICE)
    return folder


@pytest.fixture
def memory(tmp_path):
    """A folder where fsync costs nothing, if there is one."""
    folder = Path("/dev/shm") / f"udf-{tmp_path.parent.name}-{tmp_path.name}-{os.getpid()}"
    if not os.access(folder.parent, os.W_OK):
        folder = tmp_path / "memory"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def python(code: str, *arguments: object, **given) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, **given
    )


#: Builds a library, and prints the error or a result.
BUILD = """
import sys
from pytest_udftorch.swap.toolchain.shared_library import build_library
from pytest_udftorch.errors import UdfError
try:
    print(build_library(sys.argv[1]).scalar_function("exp")(21.0))
except UdfError as error:
    print(type(error).__name__, error)
"""


# Kills -------------------------------------------------------------------------------


def killed(scenario: str, folder: Path, library: Path, stride: int = 1) -> dict[str, int]:
    command = [sys.executable, *map(str, (KILLED, scenario, folder, library, stride))]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def check(counts: dict[str, int], least: int, faults: Faults, kind: str) -> None:
    faults.add(kind, "kill", counts["killed"], counts["healed"])
    assert counts["killed"] >= least
    assert counts["healed"] == counts["killed"]
    assert counts["left behind"] == 0


@pytest.mark.parametrize(
    ("scenario", "stride", "least"),
    [
        ("write", 1, 40),
        ("replace", 7, 6),
        ("evict", 7, 6),
        ("job", 7, 6),
        pytest.param("replace", 1, 40, marks=slow),
        pytest.param("evict", 1, 40, marks=slow),
        pytest.param("job", 1, 40, marks=slow),
    ],
)
def test_a_kill_at_any_step_is_healed_by_the_next_run(
    memory, library, scenario, stride, least, faults
):
    check(killed(scenario, memory, library, stride), least, faults, "cache")


def test_a_kill_at_some_steps_of_a_build_is_healed_by_the_next_run(memory, library, faults):
    check(killed("build", memory, library, 15), 4, faults, "build")


@pytest.mark.slow
def test_a_kill_at_any_step_of_a_build_is_healed_by_the_next_run(memory, library, faults):
    check(killed("build", memory, library), 60, faults, "build")


def test_a_build_reaches_the_disk_before_it_gets_its_name(cache, monkeypatch):
    done = []
    sync, replace = os.fsync, Path.replace

    def noted_sync(descriptor):
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        sync(descriptor)

    def noted_replace(self, target):
        done.append(("rename", Path(target).name))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    fill(cache / "a", lambda aside: (aside / "content").write_text("x") and {})
    assert done == [
        ("sync", "content"), ("sync", "build.json"), ("sync", "new"), ("rename", "a"),
        ("sync", "cache"),
    ]  # fmt: skip


# Damage ------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["*.so", "build.json", "*.reads"])
@pytest.mark.parametrize("flips", [4, pytest.param(36, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_not_used(cache, library, monkeypatch, which, flips, faults):
    """The library is made again, or taken unharmed; no wrong fact is believed either."""
    first = build_library(library)
    right, facts = first.path.read_bytes(), dict(cache_module.look(first.path.parent))
    (path,) = cache.rglob(which)
    dice = random.Random(16)
    for _ in range(flips):
        content = bytearray(path.read_bytes())
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        path.unlink()  # the old file is mapped into this process
        path.write_bytes(content)
        forget(monkeypatch)
        with faults("cache", "bit flip"):
            again = build_library(library)
            assert again.path.read_bytes() == right
            now = cache_module.look(again.path.parent)
            assert {**now, "seconds": 0} == {**facts, "seconds": 0}


FILES = ("*.so", "build.json", "*.reads")
THINGS = ("folder", "dangling", "elsewhere", "pipe", "empty", "cut")


@pytest.mark.parametrize(
    ("what", "which"),
    [
        # Each thing once, and each file twice.
        pytest.param(what, which, marks=() if (i - j) % len(FILES) == 0 else slow)
        for i, what in enumerate(THINGS)
        for j, which in enumerate(FILES)
    ],
)
def test_something_else_in_the_place_of_a_file_is_replaced(
    cache, library, monkeypatch, tmp_path, which, what, faults
):
    right = build_library(library).path.read_bytes()
    (path,) = cache.rglob(which)
    content = path.read_bytes()
    path.unlink()
    if what == "folder":
        (path / "inside").mkdir(parents=True)
    elif what == "dangling":
        path.symlink_to("nowhere")
    elif what == "elsewhere":
        (tmp_path / "target").write_bytes(content)
        path.symlink_to(tmp_path / "target")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(content[: len(content) // 2] if what == "cut" else b"")
    forget(monkeypatch)
    with faults("cache", "truncated" if what in ("empty", "cut") else "not a file"):
        again = build_library(library)
        assert again.path.read_bytes() == right
        assert not again.path.is_symlink()


def test_another_library_is_not_taken_even_with_facts_that_fit_it(cache, library, monkeypatch):
    """The index, which lies outside the build, knows the digests of the right files."""
    one = build_library(library)
    right = one.path.read_bytes()
    (library / "e.c").write_text("float udf_expf(float x) { return 3 * x; }\n")
    two = build_library(library)
    (library / "e.c").write_text(TWICE)
    facts = cache_module.unseal((one.path.parent / "build.json").read_text())
    facts["files"] = {one.path.name: cache_module.sha256_of(two.path)}
    one.path.unlink()
    shutil.copy(two.path, one.path)
    (one.path.parent / "build.json").write_text(cache_module.seal(facts))
    forget(monkeypatch)
    assert cache_module.look(one.path.parent) is not None
    assert build_library(library).path.read_bytes() == right


# Full disks, and tools that stop -----------------------------------------------------


@pytest.mark.parametrize("kilobytes", [0, 4, 16, *(pytest.param(n, marks=slow) for n in (1, 2, 8))])
def test_a_full_disk_is_called_so_and_heals(cache, library, kilobytes, faults):
    """A limit on the size of files stops Python and the tools at different places."""

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1024,) * 2)

    with faults("build", "disk full") as fault:
        said = python(BUILD, library, preexec_fn=limited)
        assert said.returncode == 0, said.stderr
        assert said.stdout.startswith(("42.0", "CacheError", "CompilerStoppedError")), said.stdout
        fault.refused = not said.stdout.startswith("42.0")
        assert python(BUILD, library).stdout == "42.0\n"
        assert not list(cache.rglob(".udftorch-*"))


@pytest.fixture
def disk(tmp_path):
    """A tiny filesystem, which only root can mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    sizes = []

    def mount(size, *options):
        command = [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            ",".join((f"size={size}", *options)),
            "udf",
            folder,
        ]
        if subprocess.run(command, check=False, capture_output=True).returncode != 0:
            pytest.skip("filesystems cannot be mounted here")
        sizes.append(size)
        return folder

    yield mount
    for _ in sizes:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize(
    "kilobytes",
    [4, 16, 40, *(pytest.param(n, marks=slow) for n in (8, 12, 20, 24, 28, 32))],
)
def test_a_build_on_a_full_filesystem_says_so(disk, library, monkeypatch, kilobytes, faults):
    folder = disk(f"{kilobytes}k")
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(folder))
    with faults("build", "disk full") as fault:
        said = python(BUILD, library)
        assert said.returncode == 0, said.stderr
        assert said.stdout.startswith(("42.0", "CacheError")), said.stdout
        fault.refused = not said.stdout.startswith("42.0")
        subprocess.run(["mount", "-o", "remount,size=4m", folder], check=True)
        assert python(BUILD, library).stdout == "42.0\n"
        assert not list(folder.rglob(".udftorch-*"))


def test_a_read_only_cache_serves_what_it_holds(disk, library, monkeypatch, faults):
    folder = disk("4m")
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(folder))
    assert python(BUILD, library).stdout == "42.0\n"
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    with faults("cache", "read-only"):
        assert python(BUILD, library).stdout == "42.0\n"
    (library / "e.c").write_text("float udf_expf(float x) { return 3 * x; }\n")
    with faults("cache", "read-only") as fault:
        fault.refused = True
        assert "Read-only file system" in python(BUILD, library).stdout


def tool_that(tmp_path, does: str) -> str:
    """Return a compiler that does something else once it is asked to compile."""
    clang = toolchain.find_compiler().path
    path = tmp_path / "clang"
    path.write_text(f'#!/bin/sh\ncase "$*" in --version) exec {clang} --version;; esac\n{does}\n')
    path.chmod(0o755)
    return str(path)


def test_a_killed_compiler_is_called_so(cache, library, tmp_path, monkeypatch, faults):
    monkeypatch.setenv("UDFTORCH_CLANG", tool_that(tmp_path, "kill -9 $$"))
    with faults("build", "tool killed, crashed or hung") as fault:
        fault.refused = True
        with pytest.raises(
            CompilerStoppedError, match=r"was stopped by Killed while.*e\.c.*memory"
        ):
            build_library(library)
        assert not list(cache.rglob(".udftorch-*"))


@pytest.mark.parametrize("megabytes", [20, 60, 150])
def test_a_compiler_without_memory_is_an_error(
    cache, library, tmp_path, monkeypatch, faults, megabytes
):
    with monkeypatch.context() as patch, faults("build", "out of memory") as fault:
        fault.refused = True
        limited = f'ulimit -v {megabytes << 10}; exec {toolchain.find_compiler().path} "$@"'
        patch.setenv("UDFTORCH_CLANG", tool_that(tmp_path, limited))
        with pytest.raises(UdfError):
            build_library(library)
        assert not list(cache.rglob(".udftorch-*"))
    assert build_library(library).path.exists()


def test_a_compiler_killed_when_it_states_its_version_is_called_so(tmp_path, monkeypatch):
    path = tmp_path / "clang"
    path.write_text("#!/bin/sh\nkill -9 $$\n")
    path.chmod(0o755)
    monkeypatch.setenv("UDFTORCH_CLANG", str(path))
    with pytest.raises(CompilerStoppedError, match=r"--version was killed"):
        toolchain.find_compiler()


def test_a_compiler_that_crashes_is_called_so(cache, library, faults):
    (library / "e.c").write_text(TWICE + "#pragma clang __debug crash\n")
    before = set(Path(tempfile.gettempdir()).glob("e-*.sh"))
    with faults("build", "tool killed, crashed or hung") as fault:
        fault.refused = True
        with pytest.raises(CompilerStoppedError, match=r"by a crash while it compiled .*e\.c"):
            build_library(library)
    assert (
        set(Path(tempfile.gettempdir()).glob("e-*.sh")) <= before
    )  # clang's report went with the scratch


def test_a_tool_that_never_ends_is_ended(cache, library, tmp_path, monkeypatch, faults):
    monkeypatch.setenv("UDFTORCH_CLANG", tool_that(tmp_path, "exec sleep 1000"))
    monkeypatch.setenv("UDFTORCH_BUILD_TIMEOUT", "0.5")
    with faults("build", "tool killed, crashed or hung") as fault:
        fault.refused = True
        with pytest.raises(
            CompilerStoppedError, match=r"not done after 0\.5 s.*UDFTORCH_BUILD_TIMEOUT"
        ):
            build_library(library)


@pytest.mark.parametrize("what", ["pipe", "/dev/zero", "folder"])
def test_a_source_that_is_no_file_is_named(cache, library, what):
    source = library / "e.c"
    read_before = find_library(library)
    source.unlink()
    if what == "pipe":
        os.mkfifo(source)
    elif what == "folder":
        source.mkdir()
    else:
        source.symlink_to(what)
    with pytest.raises(SourceError, match="is not a regular file"):
        build_library(read_before)


def test_an_editors_lock_beside_a_source_is_no_source(cache, library):
    (library / ".#e.c").symlink_to("me@here.1234:5678")
    (library / "dangling.h").symlink_to("nowhere")
    assert build_library(library).scalar_function("exp")(21.0) == 42.0


# Places ------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["/proc", "/sys", "/dev/null", "/dev/full", "a" * 5000])
def test_a_place_that_cannot_hold_a_cache_is_an_error_at_once(library, monkeypatch, place):
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", place)
    began = time.monotonic()
    with pytest.raises(CacheError, match=r"cannot be written.*UDFTORCH_CACHE_DIR"):
        build_library(library)
    assert time.monotonic() - began < cache_module.patience() / 2


@pytest.mark.parametrize("variables", [{"UDFTORCH_CACHE_DIR": "~nosuchuser/cache"}, {}])
def test_a_user_without_a_home_is_told_what_to_set(monkeypatch, variables):
    for name in ("HOME", "XDG_CACHE_HOME", "UDFTORCH_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(CacheError, match=r"has no place.*Set UDFTORCH_CACHE_DIR"):
        cache_folder()


def test_a_relative_xdg_folder_is_ignored(monkeypatch, tmp_path):
    monkeypatch.delenv("UDFTORCH_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "pytest_udftorch"


def test_a_cache_that_every_user_can_write_is_refused(cache, library, monkeypatch):
    build_library(library)
    cache.chmod(0o777)
    forget(monkeypatch)
    with pytest.raises(CacheError, match=r"Every user can write.*chmod o-w"):
        build_library(library)
    cache.chmod(0o1777)  # as /tmp is
    assert build_library(library).scalar_function("exp")(21.0) == 42.0


def test_a_cache_of_another_user_is_refused(cache, library, monkeypatch, faults):
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    build_library(library)
    os.chown(cache, 12345, -1)
    forget(monkeypatch)
    with faults("cache", "another owner") as fault:
        fault.refused = True
        with pytest.raises(CacheError, match=r"belongs to user 12345.*UDFTORCH_CACHE_DIR"):
            build_library(library)


def test_no_file_is_open_to_others_whatever_the_umask(cache, library):
    before = os.umask(0)
    try:
        build_library(library)
    finally:
        os.umask(before)
    assert {p.stat().st_mode & 0o077 for p in (cache, *cache.iterdir())} == {0}


def test_a_cache_behind_a_link_is_used(tmp_path, library, monkeypatch):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path / "link"))
    forget(monkeypatch)
    assert build_library(library).scalar_function("exp")(21.0) == 42.0


def test_a_cache_without_locks_still_gives_right_builds(cache, library, monkeypatch, faults):
    """Several builders at once, none of which keeps the others out."""
    code = (
        "import errno, fcntl, os\n"
        "def none(*_):\n"
        "    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))\n"
        "fcntl.flock = none\n"
    )
    command = [sys.executable, "-c", code + BUILD, str(library)]
    builders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [b.communicate(timeout=120)[0] for b in builders]
    faults.add("cache", "no locks", 4, said.count("42.0\n"))
    assert said == ["42.0\n"] * 4
    assert len(list(cache.rglob("*.so"))) == 1
    assert not list(cache.rglob(".udftorch-*"))


@pytest.mark.parametrize("damaged", [False, True])
def test_a_build_that_another_process_has_just_put_there_stays(cache, monkeypatch, damaged):
    """Where there are no locks, another process may be first after the last look."""
    folder = cache / "a"
    rival = (
        "import sys; from pathlib import Path\n"
        "from pytest_udftorch.swap.toolchain.cache import fill\n"
        "fill(Path(sys.argv[1]), lambda aside: (aside / 'content').write_text('x') and {})\n"
        "if sys.argv[2] == 'True':\n"
        "    (Path(sys.argv[1]) / 'content').write_text('y')\n"
    )
    sync, inode = cache_module.sync, []

    def late(path):
        sync(path)
        if path.name == "new" and not inode:  # the last thing before the rename
            assert not python(rival, cache / "b", damaged).returncode
            facts = json.loads((cache / "b" / "build.json").read_text())
            facts.pop("seal")
            (cache / "b" / "build.json").write_text(cache_module.seal({**facts, "build": "a"}))
            (cache / "b").rename(folder)
            inode.append(folder.stat().st_ino)

    monkeypatch.setattr(cache_module, "sync", late)
    fill(folder, lambda aside: (aside / "content").write_text("x") and {})
    assert (folder / "content").read_text() == "x"
    assert (folder.stat().st_ino == inode[0]) is not damaged
    assert cache_module.look(folder) is not None
    assert not list(cache.glob(".udftorch-*"))


# Waiting and clocks ------------------------------------------------------------------


def test_a_builder_that_waits_too_long_names_the_holder(cache, library, monkeypatch):
    code = (
        "import sys, time\n"
        "from pytest_udftorch.swap.toolchain import cache\n"
        "with cache.opened(cache.cache_folder() / sys.argv[1]):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(100)\n"
    )
    index = build_library(library).path.parent.with_suffix(".reads")
    index.unlink()
    forget(monkeypatch)
    monkeypatch.setenv("UDFTORCH_BUILD_TIMEOUT", "0.3")
    command = [sys.executable, "-c", code, index.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            holder.stdout.readline()
            with pytest.raises(
                CacheError, match=rf"0\.3 s. The process is {holder.pid} on .*end it"
            ):
                build_library(library)
        finally:
            holder.kill()
        holder.wait()
    monkeypatch.delenv("UDFTORCH_BUILD_TIMEOUT")  # a busy machine compiles slowly
    assert build_library(library).scalar_function("exp")(21.0) == 42.0


def test_an_interrupt_while_a_lock_is_taken_leaves_it_free(cache, monkeypatch):
    """A handler may raise at any place; here it is after the lock was taken."""
    pwrite = os.pwrite

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "pwrite", interrupted)
    with pytest.raises(KeyboardInterrupt), cache_module.opened(cache / "one"):
        pass
    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setenv("UDFTORCH_BUILD_TIMEOUT", "0")
    with cache_module.opened(cache / "one"):
        assert list(cache.iterdir())
    assert not list(cache.iterdir())


def test_a_child_forked_while_another_thread_takes_a_lock_does_not_keep_it(cache, monkeypatch):
    """The fork comes between the locking and the block that it protects."""
    code = (
        "import os, sys, time\n"
        "from pytest_udftorch.swap.toolchain import cache\n"
        "def fork(*_):\n"
        "    if child := os.fork():\n"
        "        os.write(1, str(child).encode())\n"
        "    else:\n"
        "        os.closerange(0, 3)\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "os.pwrite = fork\n"
        "with cache.opened(cache.cache_folder() / 'one'):\n"
        "    pass\n"
    )
    child = int(python(code).stdout)
    monkeypatch.setenv("UDFTORCH_BUILD_TIMEOUT", "5")
    try:
        with cache_module.opened(cache / "one"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf"])
def test_a_setting_that_is_no_number_is_named(monkeypatch, value):
    monkeypatch.setenv("UDFTORCH_BUILD_TIMEOUT", value)
    with pytest.raises(CacheError, match=rf"UDFTORCH_BUILD_TIMEOUT='{value}' is not a number"):
        cache_module.patience()


@pytest.mark.parametrize("jump", [-(10**18), 10**18])
def test_a_clock_that_jumps_gives_the_right_build(
    cache, library, monkeypatch, tmp_path, jump, faults
):
    header = tmp_path / "outside.h"
    source = '#include "../outside.h"\nfloat udf_expf(float x) { return FACTOR * x; }\n'
    (library / "e.c").write_text(source)
    now = time.time_ns
    for factor in (2, 3):
        header.write_text(f"#define FACTOR {factor}\n")
        os.utime(header, ns=(5, 5))  # as if the clock stood still
        monkeypatch.setattr(time, "time_ns", lambda: now() + jump)
        forget(monkeypatch)
        with faults("cache", "clock jump"):
            assert build_library(library).scalar_function("exp")(5.0) == factor * 5.0
    for path in cache.rglob("*"):
        os.utime(path, ns=(now() + abs(jump),) * 2)
    forget(monkeypatch)
    assert build_library(library).scalar_function("exp")(5.0) == 15.0


# What is left, and what is old -------------------------------------------------------


def one_file(aside: Path) -> dict[str, int]:
    (aside / "content").write_bytes(bytes(2**20))
    return {}


def elsewhere(path: Path) -> None:
    """Make a build in a process that then ends."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pytest_udftorch.swap.toolchain import cache\n"
        "def make(aside):\n"
        "    (aside / 'content').write_bytes(bytes(2**20))\n"
        "    return {}\n"
        "for name in sys.argv[1:]:\n"
        "    cache.fill(Path(name), make)\n"
    )
    assert python(code, path).returncode == 0


def test_what_killed_builders_left_is_removed_by_the_next_build(cache):
    for name in ("one-abcdefgh", "two.reads-12345678"):
        (cache / f".udftorch-{name}" / "new").mkdir(parents=True)
    (cache / ".udftorch-three.lock").write_text("123 on nowhere")
    fill(cache / "a", one_file)
    left = [p.name for p in cache.iterdir() if p.suffix != ".seen"]
    assert left == ["a"]


def test_the_scratch_of_a_builder_that_lives_stays(cache):
    with cache_module.opened(cache / "one"), cache_module.scratch(cache / "one") as aside:
        elsewhere(cache / "two")
        assert aside.is_dir()


def test_nothing_else_in_the_folder_is_removed(cache, monkeypatch):
    """The folder may be somebody's home."""
    mine = cache / ".mine-abcdefgh", cache / "mine.lock", cache / "mine" / "build.json"
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"build": "mine"}')
    (cache / "broken.reads").write_text("mine")
    monkeypatch.setenv("UDFTORCH_CACHE_MIB", "0")
    fill(cache / "a", one_file)
    assert {p.name for p in cache.iterdir()} == {
        "a",
        "mine",
        "mine.lock",
        ".mine-abcdefgh",
        "broken.reads",
    }


def test_the_builds_used_longest_ago_go_first(cache, monkeypatch):
    for age, name in enumerate("abcd"):
        elsewhere(cache / name)
        os.utime(cache / name, (1000 + age,) * 2)
    monkeypatch.setenv("UDFTORCH_CACHE_MIB", "3.5")
    fill(cache / "e", one_file)
    assert sorted(p.name for p in cache.iterdir()) == ["c", "d", "e"]


def test_the_next_build_of_a_process_reads_the_cache_only_after_a_while(cache, monkeypatch):
    monkeypatch.setenv("UDFTORCH_CACHE_MIB", "0")
    fill(cache / "a", one_file)
    elsewhere(cache / "b")
    fill(cache / "c", one_file)
    assert sorted(p.name for p in cache.iterdir()) == ["a", "b", "c"]
    monkeypatch.setattr("pytest_udftorch.swap.toolchain.cache._TIDY_AFTER", 0.0)
    fill(cache / "d", one_file)
    assert sorted(p.name for p in cache.iterdir()) == ["a", "c", "d"]


def test_a_use_makes_a_build_young(cache, monkeypatch):
    for age, name in enumerate("ab"):
        elsewhere(cache / name)
        os.utime(cache / name, (1000 + age,) * 2)
    elsewhere(cache / "a")
    monkeypatch.setenv("UDFTORCH_CACHE_MIB", "2.5")
    fill(cache / "c", one_file)
    assert sorted(p.name for p in cache.iterdir()) == ["a", "c"]


def test_a_build_in_use_stays(cache, library, monkeypatch):
    built = build_library(library)
    monkeypatch.setenv("UDFTORCH_CACHE_MIB", "0")
    for name in "ab":
        elsewhere(cache / name)
    assert built.path.is_file()
    assert {p.name for p in cache.iterdir() if p.is_dir()} == {built.build_id, "b"}


def test_an_index_goes_with_its_build(cache, library, monkeypatch):
    assert python(BUILD, library).stdout == "42.0\n"
    monkeypatch.setenv("UDFTORCH_CACHE_MIB", "0")
    elsewhere(cache / "a")
    left = [p.name for p in cache.iterdir() if p.suffix != ".seen"]
    assert left == ["a"]
    assert build_library(library).scalar_function("exp")(21.0) == 42.0


def test_descriptors_do_not_grow_with_the_uses_of_a_build(cache, library, monkeypatch):
    build_library(library)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        forget(monkeypatch)
        build_library(library)
    assert len(os.listdir("/proc/self/fd")) == before
