from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill.cli import main
from tokenmill.weights import model_cache


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def small() -> None:
    """A cached model of three kilobytes."""
    directory = model_cache.entry_directory("small")
    directory.mkdir(parents=True)
    (directory / "small.gguf").write_bytes(b"x" * 3072)
    model_cache.record("small", "pypi:small", "small.gguf", 3072, "0" * 64)


def test_nothing_cached(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"no models are cached in {cache}")
    assert "demo" in out


@pytest.mark.usefixtures("small")
def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    first = capsys.readouterr().out.splitlines()[0].split()
    assert first[:4] == ["small", "3.0", "KiB", "pypi:small"]
    assert first[4].endswith("small.gguf")


@pytest.mark.usefixtures("small")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in result["models"]] == ["small"]
    assert result["models"][0]["size_bytes"] == 3072
    assert "demo" in {alias["name"] for alias in result["available"]}


@pytest.mark.usefixtures("small")
def test_remove(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--remove", "small"]) == 0
    assert capsys.readouterr().out == "removed small (3.0 KiB)\n"
    assert model_cache.list_models() == []
    assert main(["models", "--remove", "small"]) == 1
    assert "no model 'small' is cached" in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_remove_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--remove", "small", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"]["name"] == "small"


def test_pull_prints_where_a_model_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.gguf"
    path.touch()
    assert main(["pull", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
