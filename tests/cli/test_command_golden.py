# SPDX-License-Identifier: Apache-2.0
"""What each verb of ``udftorch`` says for --help, and for one mistake, word for word.

``UDFTORCH_WRITE_GOLDEN=1 pytest tests/cli/test_command_golden.py`` writes the file anew: read
the difference before you commit it.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_udftorch import cli
from pytest_udftorch.cli.command import make_parser
from pytest_udftorch.diagnose.runs.source import check_function
from pytest_udftorch.errors import CoverageError

GOLDEN = Path(__file__).with_name("command.golden.txt")

#: Verb -> what somebody gets wrong.
MISTAKES = {
    "run": "--udf-lib=corm train.py",
    "new": "2fast",
    "verify": "corm exp",
    "certificate check": "missing.json",
    "certificate merge": "missing.json --out both.json",
    "certificate table": "missing.json",
    "certificate export": "missing.json --fpcore --out all.fpcore",
    "libraries": "corm",
    "reach": "torch.lgo",
    "coverage": "model.py",
    "same": "llama",
    "order": "torch.mm",
    "diff": "",
    "blame": "--b corem model.py",
    "record": "model.py:make",
    "sensitivity": "model.py:make --samples 2",
    "tolerance": "model.py:metric --within -1",
    "report": "missing",
    "bench": "corem epx",
    "compare": "missing.json missing.json",
    "patch": "--verify missing",
    "doctor": "--jsn",
    "setup cache": "--jsn",
    "setup prune": "--to=-1",
    "setup prebuild": "corm",
    "setup export": "folder corm",
    "setup cuda-form": "--jsn",
    "setup completion": "tcsh",
}


def verbs():
    """Every verb and action, without aliases."""
    for action in make_parser()._actions:
        if isinstance(action.choices, dict):
            listed = [choice.dest for choice in action._choices_actions]
            for name in listed:
                inner = [a for a in action.choices[name]._actions if isinstance(a.choices, dict)]
                actions = [f"{name} {x.dest}" for a in inner for x in a._choices_actions]
                yield from actions or [name]


@pytest.fixture
def say(capsys, monkeypatch, tmp_path):
    """Run a command; return its status and everything it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(text):
        try:
            status = cli.main(text.split())
        except SystemExit as end:  # argparse
            status = end.code
        said = capsys.readouterr()
        return status, (said.out + said.err).replace(str(tmp_path), "FOLDER")

    return run


def test_every_verb_has_a_mistake():
    assert set(verbs()) == set(MISTAKES)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse lists options in another way")
def test_help_and_mistakes_are_said_as_in_the_golden_file(say):
    parts = []
    for verb in ["", *verbs()]:
        status, text = say(f"{verb} --help")
        assert status == 0
        parts.append(f"$ udftorch {verb} --help".replace("  ", " ") + f"\n{text}")
    for verb in verbs():
        status, text = say(f"{verb} {MISTAKES[verb]}")
        assert status == cli.MISUSE, text
        assert "Traceback" not in text
        parts.append(f"$ udftorch {verb} {MISTAKES[verb]}".rstrip() + f"\n{text}")
    found = re.sub(r"[ \t]+$", "", "\n".join(parts), flags=re.M)
    if os.environ.get("UDFTORCH_WRITE_GOLDEN"):
        GOLDEN.write_text(found, encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8")


def test_the_help_fits_on_one_screen_and_is_grouped_by_the_six_words(say, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = say("--help")[1].splitlines()
    assert len(lines) < 24, "the last line is the shell's"
    assert max(map(len, lines)) <= 80
    words = [line.split()[0] for line in lines[3:-2] if not line.startswith(" ")]
    assert words == ["swap", "watch", "prove", "measure", "reproduce", "diagnose"]


def test_the_help_lists_every_verb_once_but_for_housekeeping(say):
    table = say("--help")[1].split("\n\n")[1]
    listed = [line[11:].split()[0] for line in table.splitlines()]
    assert sorted([*listed, "doctor", "setup"]) == sorted({verb.split()[0] for verb in verbs()})


# The ends of a command -----------------------------------------------------------------


@pytest.mark.parametrize("verb", ["libraries", "setup cache"])
def test_a_reader_that_has_seen_enough_ends_a_verb_quietly(verb):
    """The output is longer than what a pipe holds, or the reader is gone before it is written."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "pytest_udftorch", *verb.split()],
        stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param("bench corem exp --runs=100000", marks=pytest.mark.slow),
        "verify corem exp --workers=0",
    ],
)
def test_ctrl_c_ends_a_verb_quietly(verb, tmp_path):
    """Both say how far they are once they work, and would work for minutes."""
    words = [*verb.split(), *([f"--out={tmp_path}"] if "verify" in verb else [])]
    # What a shell without job control starts in the background is deaf to the key, and so are its
    # children; a handler they do not inherit.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest_udftorch", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "UDFTORCH_PROGRESS": "1"},
    )  # fmt: skip
    signal.signal(signal.SIGINT, before)
    try:
        assert process.stderr is not None
        shown = process.stderr.read(1)
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate()
    finally:
        process.kill()
    said = (shown + rest).decode()
    assert process.returncode == cli.INTERRUPTED, said
    assert f"udftorch {words[0]}: interrupted." in said
    assert "Traceback" not in said


def test_ctrl_c_before_the_verb_began_is_quiet_too(monkeypatch, capsys):
    def stopped():
        raise KeyboardInterrupt

    monkeypatch.setattr("pytest_udftorch.cli.command.make_parser", stopped)
    assert cli.main(["doctor"]) == cli.INTERRUPTED
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("numpy", ["compare", "a", "b"]),
        ("pandas", ["report", "out", "--csv=x.csv"]),
        ("distributed", ["verify", "corem", "exp"]),
        ("gmpy2", ["verify", "corem", "exp", "--quick"]),
        ("torch", ["bench", "corem", "exp"]),
        ("numpy", ["certificate", "table", "x.json"]),
        ("argcomplete", ["setup", "completion", "bash"]),
    ],
)
def test_a_missing_package_is_told_before_work_starts(package, arguments, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(arguments) == cli.MISUSE
    said = capsys.readouterr()
    assert said.out == ""
    verb = " ".join(arguments[: 2 if arguments[0] == "setup" else 1])
    assert f"udftorch {verb} needs the package {package}, which cannot" in said.err
    assert "pip install 'pytest_udftorch[" in said.err


# Completion ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("udftorch co", {"compare", "coverage"}),
        ("udftorch verify core", {"corem", "corem-ff"}),
        ("udftorch compare --by ", {"function", "operator", "layer"}),
        ("udftorch setup ", {"cache", "prune", "prebuild", "export", "cuda-form", "completion"}),
    ],
)
def test_the_tab_key_offers_what_fits(line, offers):
    pytest.importorskip("argcomplete")
    environment = os.environ | {
        "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": "/dev/stdout",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "pytest_udftorch"], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    found = {word.strip() for word in done.stdout.split("\n")}
    assert offers <= found, done.stderr
    assert "report" not in found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_for_shells(shell, capsys):
    pytest.importorskip("argcomplete")
    assert cli.main(["setup", "completion", shell]) == 0
    assert "udftorch" in capsys.readouterr().out


# Mistakes that the command line or a source shows -----------------------------------------


SOURCES = {
    "model.py": "import torch\n\n\ndef make():\n    return torch.nn.Linear(2, 2)\n",
    "script.py": "import torch\n",
    "bad.py": "import torch\ndef f(:\n",
}


#: The words of a command, and what it says.
OF_SOURCES = [
    ("diff --b cpu model.py:mak", "model.py has no function 'mak'. Name one that returns the"),
    ("diff --b cpu model.py:mak", "Did you mean 'make'?"),
    ("diff --b cpu bad.py:make", "bad.py, line 2 is not valid Python (invalid syntax): def f"),
    ("diff --b cpu bad.py", "bad.py, line 2 is not valid Python"),
    ("diff --b cpu none.py", "There is no script none.py to run."),
    ("diff script.py none.py", "There is no script none.py to run."),
    ("diff --b library=corm model.py:make", "No UDF library is called 'corm'."),
    ("diff --b eagre model.py:make", "A side cannot be 'eagre'. Did you mean 'eager'?"),
    ("diff --b cpu script.py --epochs 3", "write -- before it: script.py -- --epochs ..."),
    ("diff --b cpu script.py 3", "write -- before it: script.py -- 3 ..."),
    ("diff --b cpu model.py:make 3", "is a function, which takes no arguments, and 3 is no"),
    ("diff --origin nan script.py model.py:make", "--origin looks at one run."),
    ("record --out out script.py model.py:make", "model.py:make is not for udftorch"),
    ("sensitivity --on cud model.py:make", "A side cannot be 'cud'. Did you mean 'cuda'"),
    ("coverage model.py:mak", "Did you mean 'make'?"),
    ("blame --b corem model.py:mak", "Did you mean 'make'?"),
    ("blame --b corm model.py:make", "No UDF library is called 'corm'."),
    ("tolerance --within 1 model.py:mak", "Did you mean 'make'?"),
    ("tolerance --within 1 --ladder corm,corem model.py:make", "No UDF library is called"),
]


def test_a_mistake_that_the_source_shows_is_told_before_torch_is_imported(tmp_path):
    for name, text in SOURCES.items():
        (tmp_path / name).write_text(text)
    code = (
        "import json, sys; from pytest_udftorch import cli\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    status = cli.main(words.split())\n"
        "    torch = 'torch' in sys.modules\n"
        "    print('END', json.dumps([words, status, torch]), file=sys.stderr, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([words for words, _ in OF_SOURCES])],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == ""
    *parts, rest = re.split(r"^END (.*)\n", done.stderr, flags=re.M)
    assert rest == ""
    found = dict(zip(OF_SOURCES, zip(parts[::2], parts[1::2], strict=True), strict=True))
    for (words, says), (said, end) in found.items():
        assert json.loads(end) == [words, cli.MISUSE, False]
        assert says in said, words


@pytest.mark.parametrize(
    "text",
    [
        "from elsewhere import *\n",
        "globals()['make'] = 3\n",
        "def __getattr__(name): ...\n",
        "try:\n    import make\nexcept ImportError:\n    pass\n",
        "if True:\n    make = 3\n",
        "def other():\n    global make\n",
        "(make := 3)\n",
    ],
)
def test_a_name_that_the_source_may_bind_is_not_refused(text, tmp_path):
    path = tmp_path / "model.py"
    path.write_text(text)
    check_function(f"{path}:make")
    path.write_text("def other():\n    make = 3\n")
    with pytest.raises(CoverageError, match="Known: other"):
        check_function(f"{path}:make")


def test_a_verb_that_does_not_exist_is_offered_the_nearest(say):
    assert say("dif") == (
        cli.MISUSE,
        "udftorch: there is no verb 'dif'. Did you mean 'diff'? udftorch --help lists them.\n",
    )


def test_an_option_without_its_value_behind_a_subject_is_told(say, tmp_path):
    (tmp_path / "script.py").write_text("")
    status, text = say("diff script.py --b")
    assert status == cli.MISUSE
    assert "argument --b: expected one argument" in text
