"""The examples of docs/operators.md run as they are shown."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
BLOCK = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<language>\w+)\n(?P<body>.*?)^```$", re.M | re.S
)


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """Write the files into an empty folder, go there, and give the scripts."""
    blocks = list(BLOCK.finditer(PAGE.read_text()))
    assert len(blocks) == PAGE.read_text().count("\n```") / 2
    (tmp_path / "logs").mkdir()
    for block in blocks:
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["body"])
    monkeypatch.chdir(tmp_path)
    scripts = [b["body"] for b in blocks if not b["file"]]
    assert all(b["language"] == "python" for b in blocks if not b["file"])
    return scripts


def test_the_scripts(shown, capsys):
    space: dict[str, object] = {}
    for script in shown:
        exec(compile(script, str(PAGE), "exec"), space)
    out = capsys.readouterr().out
    assert "{'aten::log': {'aten::log CPU': 1, 'aten::log_ CPU': 1, " in out
    assert re.search(r"^aten::log +1 +1 +1,000 ", out, re.M)
    assert re.search(r"^aten::log_ +1 +1 +1,000 ", out, re.M)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_triton_kernel(shown):
    from pytest_udftorch import patched

    text = Path("logs/udf.toml").read_text()
    Path("logs/udf.toml").write_text(
        text.replace("source", "python").replace("log_out.cpp", "ops.py")
        + 'dispatch_keys = ["CUDA"]\ndtypes = ["float32"]\n'
    )
    x = torch.rand(100_003, device="cuda").add_(1e-3)
    with patched("./logs", profile="timed") as session:
        assert list(session.reached["aten::log"]) == [
            f"{name} CUDA" for name in ("aten::log", "aten::log_", "aten::log.out")
        ]
        y = torch.log(x)
        assert torch.equal(x.clone().log_(), y)
    assert torch.equal(y, x.double().log().float())
    assert session.profile.rows("function")[0].calls == 1
