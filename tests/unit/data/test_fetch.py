"""Getting data sets: from a host, out of packages, and what is said when nobody answers."""

# ruff: noqa: F401, F811 - fixtures are imported

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import io
import socket
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pooch
import pytest
import requests
import torch
from torchvision import datasets

from fedexp.data import fetch, verify
from fedexp.data.catalog import CATALOG, IDX
from fedexp.data.entry import Download
from fedexp.errors import DataError
from tests.unit.data.test_files import images, written


def no_names(*args, **kwargs):
    raise socket.gaierror(-2, "Name or service not known")


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", no_names)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Offers a folder's files, and leads from /to/<address> to the address."""

    def log_message(self, *args):
        pass

    def send_head(self):
        _, found, address = self.path.partition("/to/")
        if not found:
            return super().send_head()
        self.send_response(302)
        self.send_header("Location", address)
        self.end_headers()
        return None


def plain_text(adapter, request, _send=requests.adapters.HTTPAdapter.send, **options):
    """Takes https for http, so that a host needs no certificate."""
    asked = request.url
    request.url = asked.replace("https://", "http://", 1)
    response = _send(adapter, request, **options)
    request.url = response.url = asked
    return response


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host on this machine; returns its folder and its address."""
    folder = tmp_path / "host"
    folder.mkdir()
    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", plain_text)
    monkeypatch.setattr(pooch.core.time, "sleep", lambda _: None)  # before it tries again
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"https://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def offered(path: Path, content: bytes) -> str:
    """Puts a file on the host; returns its md5."""
    path.write_bytes(content)
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def on_host(written, host, monkeypatch):
    """Moves a small data set to the host, packed as it is published."""
    folder, address = host

    def publish(name: str) -> Path:
        root = written(name)
        files = CATALOG[name].find(root)
        if name == "cifar10":
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w:gz") as tar:
                tar.add(root / "cifar-10-batches-py", "cifar-10-batches-py")
            md5 = offered(folder / "c.tar.gz", packed.getvalue())
            downloads = [Download((f"{address}c.tar.gz",), md5, ".")]
        elif name == "emnist":
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                for file in files:
                    archive.writestr(f"gzip/{file.name}.gz", gzip.compress(file.read_bytes()))
                archive.writestr("gzip/emnist-letters-train-images-idx3-ubyte.gz", b"not asked for")
            downloads = [
                Download((f"{address}gzip.zip",), offered(folder / "gzip.zip", packed.getvalue()), "EMNIST/raw")
            ]
        elif name == "svhn":
            downloads = [
                Download((f"{address}{f.name}",), offered(folder / f.name, f.read_bytes()), f.name) for f in files
            ]
        else:
            downloads = [
                Download(
                    (f"{address}nowhere/{f.name}.gz", f"{address}{f.name}.gz"),
                    offered(folder / f"{f.name}.gz", gzip.compress(f.read_bytes())),
                    str(f.relative_to(root)),
                )
                for f in files
            ]
        monkeypatch.setitem(CATALOG, name, replace(CATALOG[name], downloads=tuple(downloads), package=None))
        return root

    return publish


# ---------------------------------------------------------------- from a host
@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn", "emnist"])
def test_a_run_downloads_what_is_not_there_and_says_nothing(name, on_host, tmp_path, capfd):
    source = on_host(name)
    expected = images(name, source).load()
    root = tmp_path / "fresh"
    loaded = images(name, root, download=True).load()
    assert torch.equal(loaded.train.x, expected.train.x)
    assert torch.equal(loaded.test.y, expected.test.y)
    assert capfd.readouterr() == ("", "")
    assert not [p for p in root.iterdir() if p.name.startswith(".")]
    assert not list(root.rglob("*letters*"))


def test_a_download_with_another_checksum_is_not_kept(on_host, host, tmp_path):
    on_host("svhn")
    path = host[0] / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:-1])
    published = CATALOG["svhn"].downloads[1].md5
    with pytest.raises(
        DataError, match=rf"tried, but failed: .*test_32x32.mat: MD5 hash of .*: expected md5:{published} but got"
    ):
        images("svhn", tmp_path / "fresh", download=True).load()
    assert list((tmp_path / "fresh").iterdir()) == []


def test_an_archive_that_holds_something_else_is_not_kept(on_host, tmp_path, monkeypatch):
    on_host("mnist")
    sums = {name: ["sha256:0"] for name in IDX}
    monkeypatch.setitem(verify.CHECKSUMS, "mnist", sums)
    with pytest.raises(DataError, match="is not the published file: expected sha256:0"):
        images("mnist", tmp_path / "fresh", download=True).load()
    assert list((tmp_path / "fresh").iterdir()) == []


@pytest.mark.parametrize("name", [n for n in CATALOG if CATALOG[n].downloads])
def test_without_a_network_a_download_is_given_up_soon(name, tmp_path, offline, capfd):
    begin = time.perf_counter()
    with pytest.raises(DataError, match=r"\(here: tried, but none of .* answered\)"):
        images(name, tmp_path, download=True).load()
    assert time.perf_counter() - begin < 3
    assert capfd.readouterr() == ("", "")


def test_a_silent_network_is_given_up_in_time(monkeypatch):
    release = threading.Event()

    def silence(*args, **kwargs):
        release.wait(20)
        raise TimeoutError

    monkeypatch.setattr(fetch, "head", silence)
    begin = time.perf_counter()
    assert not fetch.answers("https://example.invalid/", seconds=0.2)
    assert time.perf_counter() - begin < 2
    release.set()


def test_a_host_that_refuses_is_a_host_that_answers(host):
    assert fetch.answers(f"{host[1]}nowhere")


@pytest.mark.parametrize("broken", ["status", "content", "connection"])
def test_what_breaks_once_is_tried_again(broken, on_host, tmp_path, monkeypatch):
    source = on_host("svhn")
    first = []

    def breaks(handler, _send_head=Handler.send_head):
        if handler.command == "GET" and handler.path not in first:
            first.append(handler.path)
            if broken == "status":
                return handler.send_error(503)
            handler.send_response(200)
            handler.send_header("Content-Length", "7" if broken == "content" else "700")
            handler.end_headers()
            handler.wfile.write(b"nothing")
            return None
        return _send_head(handler)

    monkeypatch.setattr(Handler, "send_head", breaks)
    loaded = images("svhn", tmp_path / "fresh", download=True).load()
    assert torch.equal(loaded.train.x, images("svhn", source).load().train.x)
    assert len(first) == 2


def test_a_compressed_file_is_kept_as_it_is(on_host, tmp_path, monkeypatch):
    """Some hosts call a .gz file an encoding, which requests would undo."""
    source = on_host("mnist")

    def encoded(handler, name, value, _send_header=Handler.send_header):
        _send_header(handler, name, value)
        if name == "Content-Length" and handler.path.endswith(".gz"):
            _send_header(handler, "Content-Encoding", "gzip")

    monkeypatch.setattr(Handler, "send_header", encoded)
    loaded = images("mnist", tmp_path / "fresh", download=True).load()
    assert torch.equal(loaded.train.x, images("mnist", source).load().train.x)


# ---------------------------------------------------------------- encrypted, and known by sha256
@pytest.mark.parametrize("way", ["http", "a redirection to http", "a redirection to a file"])
def test_what_is_not_https_is_not_fetched(way, on_host, host, tmp_path, monkeypatch):
    on_host("svhn")
    _, address = host
    secret = tmp_path / "secret"
    secret.write_bytes(b"not to be read")
    plain = address.replace("https", "http")
    url = {
        "http": f"{plain}train_32x32.mat",
        "a redirection to http": f"{address}to/{plain}train_32x32.mat",
        "a redirection to a file": f"{address}to/file://{secret}",
    }[way]
    first, second = CATALOG["svhn"].downloads
    downloads = (replace(first, urls=(url,)), second)
    monkeypatch.setitem(CATALOG, "svhn", replace(CATALOG["svhn"], downloads=downloads))
    with pytest.raises(DataError, match=r"tried, but failed: .* is not https"):
        images("svhn", tmp_path / "fresh", download=True).load()
    assert list((tmp_path / "fresh").iterdir()) == []


def test_a_redirection_to_https_is_followed(on_host, host, tmp_path, monkeypatch):
    source = on_host("svhn")
    _, address = host
    downloads = [replace(d, urls=(f"{address}to/{d.urls[0]}",)) for d in CATALOG["svhn"].downloads]
    monkeypatch.setitem(CATALOG, "svhn", replace(CATALOG["svhn"], downloads=tuple(downloads)))
    loaded = images("svhn", tmp_path / "fresh", download=True).load()
    assert torch.equal(loaded.train.x, images("svhn", source).load().train.x)


def test_the_right_md5_is_not_enough(on_host, tmp_path, monkeypatch):
    on_host("svhn")
    downloads = [replace(d, sha256="0" * 64) for d in CATALOG["svhn"].downloads]
    monkeypatch.setitem(CATALOG, "svhn", replace(CATALOG["svhn"], downloads=tuple(downloads)))
    with pytest.raises(DataError, match=r"train_32x32.mat: SHA256 hash .*: expected sha256:0{64} but got [0-9a-f]{64}"):
        images("svhn", tmp_path / "fresh", download=True).load()
    assert list((tmp_path / "fresh").iterdir()) == []


def test_every_address_of_the_catalogue_is_https():
    urls = [url for entry in CATALOG.values() for item in entry.downloads for url in item.urls]
    assert len(urls) > 10
    assert [url for url in urls if not url.startswith("https://")] == []


def test_downloads_are_known_by_their_sha256():
    """CINIC-10's is not to be found; its publisher names an md5."""
    downloads = [(name, item) for name, entry in CATALOG.items() for item in entry.downloads]
    assert {name for name, item in downloads if item.sha256 is None} == {"cinic10"}
    for name, item in downloads:
        assert {kind: len(value) for kind, value in item.checksums.items()}.items() <= {"md5": 32, "sha256": 64}.items()
        known = verify.CHECKSUMS.get(name, {}).get(item.to)
        assert known in (None, [f"sha256:{item.sha256}"])  # where what is downloaded is what is read


def test_unpacked_files_are_known_by_a_sha256():
    kinds = {
        known.partition(":")[0] for files in verify.CHECKSUMS.values() for sums in files.values() for known in sums
    }
    assert kinds == {"sha256", "pixels"}  # the second one too is a sha256


def test_the_catalogue_says_what_torchvision_says():
    for name, kind in (("mnist", datasets.MNIST), ("fmnist", datasets.FashionMNIST)):
        ours = [(d.urls[0].rpartition("/")[2], d.md5) for d in CATALOG[name].downloads]
        assert ours == [tuple(resource) for resource in kind.resources]
        assert CATALOG[name].places[0][0] == f"{kind.__name__}/raw/{IDX[0]}"
    for name, kind in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        assert [(d.urls, d.md5, d.to) for d in CATALOG[name].downloads] == [((kind.url,), kind.tgz_md5, ".")]
        files = [file for file, _ in (*kind.train_list, *kind.test_list)]
        assert [Path(p).name for p in CATALOG[name].places[0]] == files == [*verify.CHECKSUMS[name]]
        assert CATALOG[name].places[0][0].startswith(kind.base_folder)
    splits = [tuple(datasets.SVHN.split_list[part]) for part in ("train", "test")]
    assert [(d.urls[0].replace("https", "http"), d.to, d.md5) for d in CATALOG["svhn"].downloads] == splits
    emnist = [(d.urls, d.md5, d.to) for d in CATALOG["emnist"].downloads]
    assert emnist == [((datasets.EMNIST.url,), datasets.EMNIST.md5, "EMNIST/raw")]
