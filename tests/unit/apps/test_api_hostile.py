"""What strangers send: refused or inert."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from shoal.apps.api import guard, uploads
from shoal.apps.recipes import shipped

from .serving import Serving, serving


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("hostile")) as found:
        yield found


@pytest.fixture
def http(coordinator: Serving) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {coordinator.token}"}
    with httpx.Client(base_url=coordinator.address, headers=headers, timeout=30) as client:
        yield client


def scoped(coordinator: Serving, scope: str) -> dict[str, str]:
    token = (coordinator.home.coordinator / f"{scope}-token").read_text().strip()
    return {"Authorization": f"Bearer {token}"}


def upload(http: httpx.Client, name: str, content: bytes) -> httpx.Response:
    return http.post("/api/v1/datasets", params={"name": name}, content=content)


# --- scopes and sites ------------------------------------------------------------------------------------


def test_scopes_include_those_before_them(coordinator: Serving, http: httpx.Client) -> None:
    run = http.post("/api/v1/runs", content=shipped()["digits"].read_text()).json()["run"]
    asks = [
        ("GET", f"/api/v1/runs/{run}"),
        ("POST", f"/api/v1/runs/{run}/pause"),
        ("POST", f"/api/v1/runs/{run}/rewind"),
    ]
    allowed = {"view": 1, "operate": 2, "admin": 3}
    for scope, count in allowed.items():
        answers = [
            httpx.request(method, coordinator.address + path, headers=scoped(coordinator, scope))
            for method, path in asks
        ]
        assert [answer.status_code != 403 for answer in answers] == [True] * count + [False] * (3 - count)
        assert all(answer.json()["code"] == "SH-API-05" for answer in answers[count:])


def test_with_less_than_admin_no_file_of_the_machine_is_read(coordinator: Serving) -> None:
    recipe = {"name": "x", "model": {"kind": "gpt"}, "data": {"source": "text", "path": "/etc/passwd"},
              "inner": {"kind": "adamw"}, "budget": {"rounds": 1}}  # fmt: skip
    answer = httpx.post(
        coordinator.address + "/api/v1/runs",
        content=json.dumps(recipe),
        headers=scoped(coordinator, "operate"),
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "SH-API-05")


def test_no_other_site_may_watch(coordinator: Serving) -> None:
    address = coordinator.address.replace("http", "ws") + "/api/v1/live"
    with (
        connect(address, origin="https://elsewhere.example") as socket,
        pytest.raises(ConnectionClosed) as closed,
    ):
        socket.recv(timeout=10)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 4403


def test_a_socket_without_a_token_hears_nothing(coordinator: Serving) -> None:
    address = coordinator.address.replace("http", "ws") + "/api/v1/live"
    with connect(address) as socket:
        socket.send(json.dumps({"token": "wrong"}))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 4401


def test_every_answer_is_guarded(coordinator: Serving, http: httpx.Client) -> None:
    for path in ("/", "/healthz", "/api/v1/runs", "/nothing", "/docs"):
        headers = http.get(path, headers={"Origin": "https://elsewhere.example"}).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert not any(name.startswith("access-control") for name in headers)


def test_an_answer_that_is_known_is_not_sent_again(http: httpx.Client) -> None:
    first = http.get("/api/v1/recipes")
    again = http.get("/api/v1/recipes", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_no_secret_is_answered(coordinator: Serving, http: httpx.Client) -> None:
    run = http.post("/api/v1/runs", content=shipped()["digits"].read_text()).json()["run"]
    secrets = [path.read_text().strip() for path in coordinator.home.coordinator.glob("*-token")]
    secrets.append(coordinator.home.coordinator_key.read_text().strip())
    paths = ["", "/rounds", "/events", "/checkpoints", "/credit", "/log", "/parameters"]
    said = "".join(http.get(f"/api/v1/runs/{run}{path}").text for path in paths) + http.get("/metrics").text
    assert len(secrets) == 5
    assert not any(secret in said for secret in secrets)


# --- paths -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/assets/../../site.py", "/assets/%2e%2e/%2e%2e/app.py", "/..%2fapi"]
)
def test_paths_lead_nowhere_else(coordinator: Serving, path: str) -> None:
    with httpx.Client() as client:
        request = client.build_request("GET", coordinator.address)
        request.url = request.url.copy_with(raw_path=path.encode())
        answer = client.send(request)
    assert "root:" not in answer.text and "def " not in answer.text
    assert answer.status_code in (200, 404, 503)


@pytest.mark.parametrize(
    "name", ["../../evil.txt", "/etc/cron.d/evil.txt", "a/../../b.txt", "\x00.txt", "con.txt"]
)
def test_an_uploads_name_is_never_a_path(coordinator: Serving, http: httpx.Client, name: str) -> None:
    answer = upload(http, name, b"some text\n")
    assert answer.status_code == 201
    folder = coordinator.home.coordinator / "datasets"
    assert {path.parent for path in folder.rglob("*")} <= {folder}
    assert not list(coordinator.home.root.rglob("evil*"))


def test_an_upload_id_is_never_a_path(http: httpx.Client) -> None:
    recipe = {"name": "x", "model": {"kind": "gpt"}, "data": {"source": "text", "path": "upload:../admin-token"},
              "inner": {"kind": "adamw"}, "budget": {"rounds": 1}}  # fmt: skip
    answer = http.post("/api/v1/runs", content=json.dumps(recipe))
    assert (answer.status_code, answer.json()["code"]) == (422, "SH-DATA-01")


# --- bombs -----------------------------------------------------------------------------------------------


def test_what_would_unpack_to_too_much_is_refused(http: httpx.Client) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, b"\0" * (30 << 20))
    answer = upload(http, "bomb.npz", target.getvalue())
    assert (answer.status_code, answer.json()["code"]) == (422, "SH-DATA-03")
    assert "unpack" in answer.json()["detail"]


def test_an_image_of_too_many_pixels_is_refused(http: httpx.Client) -> None:
    picture, target = io.BytesIO(), io.BytesIO()
    Image.new("1", (4000, 4000)).save(picture, "PNG")
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("index.csv", "path,label\na.png,cat\n")
        archive.writestr("a.png", picture.getvalue())
    answer = upload(http, "images.zip", target.getvalue())
    assert answer.status_code == 422 and "pixels" in answer.json()["detail"]


def test_a_huge_upload_is_refused_and_leaves_nothing(
    coordinator: Serving, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MAX_UPLOAD_BYTES", 1 << 16)
    answer = upload(http, "large.txt", b"a" * (1 << 17))
    assert answer.status_code == 413
    assert not list((coordinator.home.coordinator / "datasets").glob("*.part"))


def test_a_huge_recipe_is_refused(http: httpx.Client) -> None:
    assert http.post("/api/v1/runs", content=b"a" * (guard.MAX_BODY_BYTES + 1)).status_code == 413


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.exe", b"x"), ("a.txt", b"\0binary"), ("a.jsonl", b"not json"), ("a.parquet", b"PAR1"), ("a.npz", b"PK"),
     ("a.zip", b"PK\x05\x06" + b"\0" * 18), ("a.csv", b"path,label\n../../admin-token,x\n"), ("a.txt", b"")],
)  # fmt: skip
def test_what_is_not_a_dataset_is_refused(http: httpx.Client, name: str, content: bytes) -> None:
    answer = upload(http, name, content)
    assert answer.status_code == 422
    assert answer.json()["code"] in ("SH-DATA-02", "SH-DATA-03")


# --- what is accepted ------------------------------------------------------------------------------------


def test_images_by_a_csv_become_arrays(coordinator: Serving, http: httpx.Client) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("set/index.csv", "path,label\na.png,cat\nb.png,dog\n")
        for name, shade in (("a.png", 0), ("b.png", 255)):
            picture = io.BytesIO()
            Image.new("L", (4, 4), shade).save(picture, "PNG")
            archive.writestr(f"set/{name}", picture.getvalue())
    answer = upload(http, "pets.zip", target.getvalue()).json()
    assert answer["data"] == {"source": "npz", "path": uploads.PREFIX + answer["dataset"]}
    with np.load(coordinator.home.coordinator / "datasets" / f"{answer['dataset']}.npz") as arrays:
        assert arrays["x"].shape == (2, 1, 4, 4)
        assert arrays["y"].tolist() == [0, 1]
        assert arrays["x"].max() == 1.0


def test_a_run_begins_from_an_upload(http: httpx.Client) -> None:
    data = upload(http, "words.jsonl", b'{"text": "hello world"}\n' * 500).json()["data"]
    recipe = {"name": "up", "model": {"kind": "gpt", "layers": 1, "width": 8, "heads": 1},
              "data": {**data, "context": 8},
              "inner": {"kind": "adamw", "batch_size": 2}, "budget": {"rounds": 1}}  # fmt: skip
    answer = http.post("/api/v1/runs", content=json.dumps(recipe))
    assert answer.status_code == 201, answer.text


def test_scripts_in_names_stay_text(coordinator: Serving, http: httpx.Client) -> None:
    name = "<script>alert(1)</script>"
    recipe = shipped()["digits"].read_text().replace("name: digits", f'name: "{name}"')
    run = http.post("/api/v1/runs", content=recipe).json()["run"]
    answer = http.get(f"/api/v1/runs/{run}")
    assert answer.headers["content-type"] == "application/json"
    from shoal.apps.report import gather
    from shoal.apps.report_page import page

    with coordinator.client() as api:
        text = page(gather(api, run))
    assert "<script" not in text and "&lt;script&gt;" in text


def test_a_socket_is_refused_where_there_is_none(coordinator: Serving) -> None:
    with pytest.raises(InvalidStatus):
        connect(coordinator.address.replace("http", "ws") + "/api/v1/elsewhere")
