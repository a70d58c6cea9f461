"""The model cache on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tokenmill.errors import SourceError
from tokenmill.weights import model_cache


def put(name: str, data: bytes = b"GGUF") -> Path:
    directory = model_cache.entry_directory(name)
    directory.mkdir(parents=True)
    path = directory / "m.gguf"
    path.write_bytes(data)
    model_cache.record(name, "somewhere", "m.gguf", len(data), "ab12")
    return path


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "a"))
    assert model_cache.models_directory() == tmp_path / "a" / "models"
    monkeypatch.delenv("TOKENMILL_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert model_cache.home() == tmp_path / "b" / "tokenmill"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert model_cache.home() == tmp_path / "c" / ".cache" / "tokenmill"


@pytest.mark.parametrize(
    "name", ["demo", "org/name", "pypi:a==1.0+x", "hf:o/n:d/f.gguf", "..", "/", "a b"]
)
def test_an_entry_is_a_direct_child_of_the_cache(name: str, cache_home: Path) -> None:
    directory = model_cache.entry_directory(name)
    assert directory.parent == cache_home / "models"
    assert directory.name not in ("", ".", "..")


def test_record_find_list_remove(cache_home: Path) -> None:
    assert model_cache.list_models() == []
    assert model_cache.find("b") is None
    path = put("b")
    put("org/a")
    entry = model_cache.find("b")
    assert entry is not None
    assert (entry.name, entry.source, entry.path, entry.size_bytes) == ("b", "somewhere", path, 4)
    assert entry.sha256 == "ab12"
    assert entry.created.endswith("+00:00")
    assert [model.name for model in model_cache.list_models()] == ["b", "org/a"]
    assert model_cache.remove("b") == entry
    assert not path.parent.exists()
    with pytest.raises(SourceError, match="no model 'b' is cached; cached: org/a"):
        model_cache.remove("b")


def test_an_unfinished_download_can_be_removed(cache_home: Path) -> None:
    staging = model_cache.entry_directory("b") / model_cache.STAGING
    staging.mkdir(parents=True)
    (staging / "joined").write_bytes(bytes(10))
    removed = model_cache.remove("b")
    assert (removed.source, removed.size_bytes) == ("an unfinished download", 10)
    assert not staging.parent.exists()
    put("org/a")
    with pytest.raises(SourceError, match="no model 'org--a'"):
        model_cache.remove("org--a")
    assert model_cache.find("org/a") is not None


def test_another_name_with_the_same_directory_is_not_a_hit(cache_home: Path) -> None:
    put("org/a")
    assert model_cache.entry_directory("org--a") == model_cache.entry_directory("org/a")
    assert model_cache.find("org--a") is None


@pytest.mark.parametrize(
    "sidecar", ["", "[]", "{}", '{"name": 1}', '{"file": "m.gguf"}', "\xff", '{"file": ["x"]}']
)
def test_a_broken_sidecar_counts_as_none(sidecar: str, cache_home: Path) -> None:
    path = put("b")
    (path.parent / model_cache.SIDECAR).write_bytes(sidecar.encode("latin-1"))
    assert model_cache.find("b") is None
    assert model_cache.list_models() == []


def test_a_file_of_another_size_or_none_is_not_a_hit(cache_home: Path) -> None:
    path = put("b")
    path.write_bytes(b"GG")
    assert model_cache.find("b") is None
    path.unlink()
    assert model_cache.find("b") is None


def test_the_sidecar_can_be_read_by_others(cache_home: Path) -> None:
    sidecar = put("b").parent / model_cache.SIDECAR
    assert sidecar.stat().st_mode & 0o777 == (sidecar.parent / "m.gguf").stat().st_mode & 0o777
    assert json.loads(sidecar.read_text())["name"] == "b"
    assert sorted(p.name for p in sidecar.parent.iterdir()) == ["m.gguf", "tokenmill.json"]


def test_a_lock_waits_for_its_holder_and_says_so(
    cache_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = (
        "from tokenmill.weights import model_cache\n"
        "with model_cache.lock('m', announce=True):\n"
        "    print('inside', flush=True)\n"
    )
    with model_cache.lock("m"):
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert child.stderr is not None
        assert "waiting for another process that is fetching m" in child.stderr.readline()
        assert child.poll() is None
    out, _ = child.communicate(timeout=60)
    assert out == "inside\n"


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "file"))
    with (
        pytest.raises(SourceError, match=r"cannot write to the model cache .*TOKENMILL_HOME"),
        model_cache.lock("m"),
    ):
        pass


def test_space_is_checked(tmp_path: Path) -> None:
    model_cache.require_space(tmp_path, 1)
    with pytest.raises(SourceError, match=r"MB free but .* MB are needed; make room"):
        model_cache.require_space(tmp_path, 1 << 60)
