from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenmill.weights import packed_cache
from tokenmill.weights.packed_cache import PackedCache, files_identity
from tokenmill.weights.packed_directory import packed_entries, remove_packed
from tokenmill.weights.packed_file import ALIGNMENT, PackedMatrix

MODEL = "/models/some model.gguf"


def matrices(*sizes: int) -> dict[str, PackedMatrix]:
    """Matrices of the given numbers of bytes; what they hold is of no concern here."""
    generator = torch.Generator().manual_seed(3)
    return {
        f"m{i}": PackedMatrix(
            (("Q4_K", 16 * i + 16), ("F32", 3)),
            256,
            torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8),
            None,
        )
        for i, size in enumerate(sizes)
    }


@pytest.fixture
def cache(tmp_path: Path) -> PackedCache:
    """An empty cache that takes small models, too."""
    return PackedCache(tmp_path / "packed", 1 << 20, smallest_bytes=0)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_was_written_is_read(cache: PackedCache, caplog: pytest.LogCaptureFixture) -> None:
    written = matrices(64, 5000, 70_001)
    assert cache.read(MODEL, "k") == {}
    assert cache.write(MODEL, "k", written)
    read = cache.read(MODEL, "k")
    assert list(read) == list(written)
    for name, matrix in written.items():
        assert torch.equal(read[name].data, matrix.data)
        assert read[name].segments == matrix.segments
        assert read[name].in_features == matrix.in_features
        assert read[name].data.data_ptr() % ALIGNMENT == 0
    assert warnings(caplog) == []


def test_kernels_may_read_past_the_last_tile(cache: PackedCache) -> None:
    cache.write(MODEL, "k", matrices(4096, 4096))
    last = cache.read(MODEL, "k")["m1"].data
    path = cache.path(MODEL, "k")
    beyond = torch.frombuffer(bytearray(path.read_bytes()[-ALIGNMENT:]), dtype=torch.uint8)
    assert not beyond.any()
    assert path.read_bytes()[:-ALIGNMENT].endswith(bytes(last.tolist()))


def test_other_weights_are_not_taken(cache: PackedCache) -> None:
    cache.write(MODEL, "k", matrices(100))
    assert cache.read(MODEL, "another") == {}
    assert cache.path(MODEL, "k") != cache.path(MODEL, "another")


def test_a_file_under_the_wrong_name_is_not_taken(
    cache: PackedCache, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write(MODEL, "k", matrices(100))
    shutil.copy(cache.path(MODEL, "k"), cache.path(MODEL, "another"))
    assert cache.read(MODEL, "another") == {}
    assert "other weights" in warnings(caplog)[0]


@pytest.mark.parametrize("kept", [0, 5, 30, 300, -1, -64])
def test_truncated_files_are_made_anew(
    cache: PackedCache, caplog: pytest.LogCaptureFixture, kept: int
) -> None:
    cache.write(MODEL, "k", matrices(5000, 5000))
    path = cache.path(MODEL, "k")
    path.write_bytes(path.read_bytes()[:kept])
    assert cache.read(MODEL, "k") == {}
    assert len(warnings(caplog)) == 1
    assert cache.write(MODEL, "k", matrices(5000, 5000))
    assert len(cache.read(MODEL, "k")) == 2


@pytest.mark.parametrize("where", [0, 9, 13, 17, 40, 2000, -5064])
def test_damage_is_noticed(cache: PackedCache, caplog: pytest.LogCaptureFixture, where: int) -> None:
    cache.write(MODEL, "k", matrices(9000, 5000))
    path = cache.path(MODEL, "k")
    content = bytearray(path.read_bytes())
    content[where] ^= 0x10
    path.write_bytes(content)
    assert cache.read(MODEL, "k") == {}
    assert len(warnings(caplog)) == 1


def test_the_mapping_outlives_the_file(cache: PackedCache) -> None:
    written = matrices(9000)
    cache.write(MODEL, "k", written)
    read = cache.read(MODEL, "k")["m0"].data
    cache.write(MODEL, "k", matrices(10, 20))
    shutil.rmtree(cache.directory)
    assert torch.equal(read, written["m0"].data)


def test_writers_do_not_disturb_each_other(cache: PackedCache) -> None:
    written = matrices(50_000, 50_000)
    threads = [threading.Thread(target=cache.write, args=(MODEL, "k", written)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.suffix for path in cache.directory.iterdir()] == [".packed"]
    assert torch.equal(cache.read(MODEL, "k")["m1"].data, written["m1"].data)


def use(cache: PackedCache, key: str, seconds: float) -> None:
    os.utime(cache.path(MODEL, key), (seconds, seconds))


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, 35_000, smallest_bytes=0)
    for second, key in enumerate("abc"):
        cache.write(MODEL, key, matrices(10_000))
        use(cache, key, second)
    assert cache.read(MODEL, "a")  # now b is the oldest
    cache.write(MODEL, "d", matrices(10_000))
    left = {entry.path for entry in packed_entries(tmp_path)}
    assert left == {cache.path(MODEL, key) for key in "acd"}


def test_a_model_larger_than_the_cache_displaces_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = PackedCache(tmp_path, 35_000, smallest_bytes=0)
    cache.write(MODEL, "a", matrices(10_000))
    assert not cache.write(MODEL, "b", matrices(40_000))
    assert [entry.path for entry in packed_entries(tmp_path)] == [cache.path(MODEL, "a")]
    assert "may hold" in warnings(caplog)[0]


def test_small_models_are_not_kept(tmp_path: Path) -> None:
    assert not PackedCache(tmp_path / "packed", 1 << 30).write(MODEL, "k", matrices(10_000))
    assert not (tmp_path / "packed").exists()


def test_a_full_disk_is_a_line_in_the_log(
    cache: PackedCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(packed_cache.shutil, "disk_usage", lambda _: usage)
        assert not cache.write(MODEL, "k", matrices(10_000))

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(packed_cache, "write_packed", fail)
    assert not cache.write(MODEL, "k", matrices(10_000))
    assert len(warnings(caplog)) == 2
    assert "No space left" in warnings(caplog)[1]
    assert list(cache.directory.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = PackedCache(tmp_path / "file" / "packed", 1 << 20, smallest_bytes=0)
    assert not cache.write(MODEL, "k", matrices(100))
    assert len(warnings(caplog)) == 1
    assert cache.read(MODEL, "k") == {}


def test_what_killed_writers_left_is_removed(cache: PackedCache) -> None:
    cache.directory.mkdir()
    dead, alive = cache.directory / "dead.new", cache.directory / "alive.new"
    dead.write_bytes(b"x")
    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cache.write(MODEL, "k", matrices(100))
        assert not dead.exists()
        assert alive.exists()


def test_entries_say_whose_they_are(cache: PackedCache) -> None:
    cache.write(MODEL, "k", matrices(100))
    (cache.directory / "broken.packed").write_bytes(b"TMPACKED")
    assert sorted(entry.model for entry in packed_entries(cache.directory)) == ["", MODEL]
    assert remove_packed(cache.directory, Path("/models/other")) == 0
    assert remove_packed(cache.directory, Path("/models")) == 1
    assert [entry.model for entry in packed_entries(cache.directory)] == [""]
    assert packed_entries(cache.directory / "missing") == []


def test_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(3 << 20))
    os.utime(path, (1, 1))
    first = files_identity([path])
    assert files_identity([path]) == first
    for where in (0, (1 << 20) - 1, 1 << 20):
        content = bytearray(3 << 20)
        content[where] = 1
        path.write_bytes(content)
        os.utime(path, (1, 1))
        assert files_identity([path]) != first
    path.write_bytes(bytes(3 << 20))
    os.utime(path, (1, 2))
    assert files_identity([path]) != first
    with pytest.raises(OSError, match="missing"):
        files_identity([tmp_path / "missing"])
