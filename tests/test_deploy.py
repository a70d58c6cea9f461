"""The files of deploy/ can't run here: they are read, and their commands are put to our own parser."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from tokenmill import __version__
from tokenmill.cli import serve_options
from tokenmill.cli.main import build_parser
from tokenmill.config import ServerConfig
from tokenmill.server.process import LAST_WORDS_S
from tokenmill.server.security import OPEN_PATHS

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"


def served_by(arguments: list[str]) -> tuple[Any, ServerConfig]:
    """What a command line of ours sets up; wrong ones fail."""
    args = build_parser().parse_args(arguments)
    return args, serve_options.server_config(args, {})


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments."""
    text = (DEPLOY / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in found]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    start = max(index for index, (name, _) in enumerate(found) if name == "FROM")
    return found[start:]


def argument(name: str) -> str:
    """The argument of the only instruction of that name in the last stage."""
    (found,) = [rest for instruction, rest in last_stage() if instruction == name]
    return found


@pytest.mark.parametrize("file", sorted(DEPLOY.iterdir()), ids=lambda file: file.name)
def test_versions_are_not_written_down(file: Path) -> None:
    assert __version__ not in file.read_text()
    assert ":latest" not in file.read_text()


def test_the_package_has_its_version_from_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert "version" not in project["project"]
    source = project["tool"]["scikit-build"]["metadata"]["version"]["input"]
    assert f'__version__ = "{__version__}"' in (ROOT / source).read_text()


def test_the_image_tag_comes_from_there_too() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    pattern = re.search(r"sed -n 's/(.*)/\\1/p' (\S+)\)", text)
    assert pattern is not None
    expression = pattern[1].replace(r"\(", "(").replace(r"\)", ")")
    found = re.search(expression, (ROOT / pattern[2]).read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == __version__


def test_dockerfile_stages() -> None:
    names = [name for name, _ in instructions()]
    assert names.count("FROM") == 2
    known = "ARG FROM RUN WORKDIR COPY ENV USER VOLUME EXPOSE HEALTHCHECK STOPSIGNAL ENTRYPOINT CMD"
    assert set(names) <= set(known.split())
    assert not any("apt-get" in rest for _, rest in last_stage())


def test_the_image_does_not_run_as_root() -> None:
    assert int(argument("USER")) > 0
    after = [name for name, _ in last_stage()]
    assert after.index("USER") < after.index("ENTRYPOINT")


def test_what_the_image_is_built_from_is_there_and_not_ignored() -> None:
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert source in kept


def test_command_and_health_check_of_the_image() -> None:
    assert json.loads(argument("ENTRYPOINT")) == ["tokenmill"]
    args, config = served_by(json.loads(argument("CMD")))
    assert args.host == "0.0.0.0"
    assert args.port == int(argument("EXPOSE"))
    assert config.allowed_hosts is None
    check = json.loads(argument("HEALTHCHECK").partition("CMD")[2])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "health check", "exec")
    assert f"http://127.0.0.1:{args.port}/health" in check[2]
    assert "/health" in OPEN_PATHS


def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "tokenmill.service")
    return parser


def test_unit() -> None:
    service = unit()["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/bin/tokenmill")
    args, config = served_by(arguments)
    assert args.host == "127.0.0.1"
    assert config.api_key_file is not None
    assert int(service["TimeoutStopSec"]) > config.drain_s + LAST_WORDS_S
    assert "-HUP" in service["ExecReload"]
    assert service["Restart"] == "on-failure"
    assert service["User"] not in ("", "root", "0")
    assert service["CapabilityBoundingSet"] == ""
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "RestrictNamespaces"):
        assert service[name] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert unit()["Install"]["WantedBy"] == "multi-user.target"


def manifests() -> dict[str, Any]:
    with (DEPLOY / "kubernetes.yaml").open() as file:
        return {document["kind"]: document for document in yaml.safe_load_all(file)}


def test_manifests_fit_together() -> None:
    found = manifests()
    assert set(found) == {"PersistentVolumeClaim", "Deployment", "Service"}
    spec = found["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert found["Service"]["spec"]["selector"].items() <= labels.items()
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]
    assert container["image"] == "IMAGE"


def test_pods_are_confined_and_probed() -> None:
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == int(argument("USER"))
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    args, config = served_by(container["args"])
    assert args.host == "0.0.0.0"
    assert args.port == container["ports"][0]["containerPort"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(config.api_key_file.parent) in mounts  # type: ignore[union-attr]
    home = re.search(r"TOKENMILL_HOME=(\S+)", argument("ENV"))
    assert home is not None
    assert home[1] in mounts
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness")}
    assert paths == {"startup": "/ready", "readiness": "/ready"}
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert set(paths.values()) <= OPEN_PATHS
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + config.drain_s + LAST_WORDS_S
