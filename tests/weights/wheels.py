"""Makes small wheels that carry model files, as package indexes hold them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_wheel(directory: Path, package: str, version: str, members: Mapping[str, bytes]) -> Path:
    """A wheel that pip accepts, with the given members."""
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    path = directory / f"{name}-{version}-py3-none-any.whl"
    files = dict(members) | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{member},,\n" for member in files) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", record)
    return path
