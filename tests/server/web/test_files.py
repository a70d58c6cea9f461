"""The page's files and how they are served. What the page does is in test_page.py."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from tests.server.conftest import Client, error_of
from tests.server.fake_engine import FakeEngine
from tokenmill.config import ServerConfig
from tokenmill.server import web
from tokenmill.server.web.pages import CONTENT_TYPES, page_files


@pytest.fixture
def client() -> Client:
    return Client(FakeEngine())


def test_the_page_is_at_the_root(client: Client) -> None:
    response = client.request("GET", "/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.text.startswith("<!doctype html>")


def test_every_file_that_one_names_is_there(client: Client) -> None:
    files = page_files()
    named = set(re.findall(r'(?:src|href)="web/([^"]+)"', files["index.html"].decode()))
    assert "main.js" in named
    for name, data in files.items():
        if name.endswith(".js"):
            named |= set(re.findall(r'from "\./([^"]+)"', data.decode()))
    assert named == set(files) - {"index.html"}
    for name in named:
        response = client.request("GET", f"/web/{name}")
        assert response.status_code == 200
        assert response.content == files[name]
        assert response.headers["content-type"] == CONTENT_TYPES[Path(name).suffix]


@pytest.mark.parametrize("path", ["/", "/web/main.js", "/web/style.css", "/web/icon.svg"])
def test_only_this_server_is_trusted(client: Client, path: str) -> None:
    headers = client.request("GET", path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    allowed = {value for name, value in policy.items() if name.endswith("-src")}
    assert allowed == {"'none'", "'self'"}
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_a_browser_asks_again_only_for_what_changed(client: Client) -> None:
    first = client.request("GET", "/web/main.js")
    assert first.headers["cache-control"] == "no-cache"
    again = client.request("GET", "/web/main.js", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    other = client.request("GET", "/web/main.js", headers={"if-none-match": '"0123"'})
    assert other.status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/web/", "/web/nothing.js", "/web/index.html", "/web/../pages.py", "/web/%2e%2e%2fpages.py"],
)
def test_nothing_else_is_served(client: Client, path: str) -> None:
    response = client.request("GET", path)
    assert response.status_code == 404
    assert error_of(response)["type"] == "invalid_request_error"


def test_only_reading(client: Client) -> None:
    assert client.request("POST", "/").status_code == 405
    assert client.request("HEAD", "/").status_code == 200


def test_no_key_is_needed_for_the_page_itself() -> None:
    client = Client(FakeEngine(), config=ServerConfig(api_keys=("secret",)))
    assert client.request("GET", "/").status_code == 200
    assert client.request("GET", "/web/main.js").status_code == 200
    assert client.request("GET", "/v1/models").status_code == 401
    assert client.request("GET", "/metrics").status_code == 401


def test_it_can_be_left_out() -> None:
    client = Client(FakeEngine(), config=ServerConfig(web=False))
    assert client.request("GET", "/").status_code == 404
    assert client.request("GET", "/web/main.js").status_code == 404
    assert client.request("GET", "/v1/models").status_code == 200


def test_no_text_becomes_html_or_code() -> None:
    risky = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser"
        r"|\beval\(|new Function|setTimeout\([\"']|\bon[a-z]+=|<script(?! type=\"module\" src=)|style="
    )
    for name, data in page_files().items():
        assert not risky.search(data.decode()), name


def test_every_file_has_a_type_that_is_served() -> None:
    there = {file.name for file in (resources.files(web) / "page").iterdir()}
    assert set(page_files()) == there
