"""Shards at a URL: complete or absent, fetched part by part into a cache that is verified, and refused with words."""

import hashlib
import multiprocessing
import os
import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, partition, read_manifest
from dgl_gt.partition.shards.files import ShardReader, files_of, read_node_names, verify
from dgl_gt.partition.shards.manifest import SHARDS, is_shards
from dgl_gt.partition.sources.pairs import read_pairs
from dgl_gt.partition.sources.table_files import names_tables
from dgl_gt.partition.system.atomic_write import new_directory, new_file
from dgl_gt.partition.system.output_checks import free_disk_bytes
from dgl_gt.partition.system.storage import UNFINISHED, cached, get, located, names_at, put
from dgl_gt.report.run_report import write_run_report

GRAPH = "sample:communities?nodes=120&features=4"


def named_graph(folder):
    """An edge list whose nodes have names."""
    draw = np.random.default_rng(0)
    lines = (f"n{a},n{b}\n" for a, b in draw.integers(0, 50, (300, 2)))
    path = folder / "edges.csv"
    path.write_text("src,dst\n" + "".join(lines))
    return path


def test_the_same_shards_with_names_and_links(tmp_path, bucket):
    """Every file is the same as in a directory, only one part is fetched, and nothing holds the secret key."""
    address, system, store = bucket
    source = named_graph(tmp_path)
    here = partition(source, 3, tmp_path / "a", ids="names", link_split="0.8,0.1,0.1")
    there = partition(source, 3, f"{address}/a", ids="names", link_split="0.8,0.1,0.1")
    assert there == here and read_manifest(f"{address}/a") == here
    assert {*names_at(located(f"{address}/a"))} == {*here["files"], "manifest.json"}
    store.requests.clear()
    verify(f"{address}/a", here, [1])
    fetched = {path for method, path in store.requests if method == "GET"}
    assert fetched == {f"/graphs/a/{name}" for name in here["files"] if name.startswith("part1/")}
    np.testing.assert_array_equal(read_node_names(f"{address}/a"), read_node_names(tmp_path / "a"))
    for shards in (f"{address}/a", tmp_path / "a"):
        verify(shards, here)
    links, wanted = (ShardReader(each, here).links() for each in (f"{address}/a", tmp_path / "a"))
    for name in wanted:
        np.testing.assert_array_equal(links[name], wanted[name])
    structure, wanted = (ShardReader(each, here).structure(2) for each in (f"{address}/a", tmp_path / "a"))
    for name in wanted:
        np.testing.assert_array_equal(structure[name], wanted[name])
    assert not any(b"a-secret-key" in system.cat_file(name) for name in system.find(address))


@pytest.mark.parametrize("cut", ["edge", "vertex"])
def test_force_replaces_shards_and_nothing_else(tmp_path, bucket, cut):
    address, system, _ = bucket
    out = f"{address}/deep/er"
    partition(GRAPH, 3, out)
    with pytest.raises(InputError, match=out):
        partition(GRAPH, 2, out, cut=cut)
    made = partition(GRAPH, 2, out, cut=cut, force=True)
    assert {*names_at(located(out))} == {*made["files"], "manifest.json"}
    system.pipe_file(f"{out}/letter.txt", b"mine")
    with pytest.raises(InputError, match=r"letter\.txt"):
        partition(GRAPH, 2, out, force=True)
    system.pipe_file(f"{address}/other/letter.txt", b"mine")
    with pytest.raises(InputError, match=r"letter\.txt"):
        partition(GRAPH, 2, f"{address}/other", force=True)
    with pytest.raises(InputError, match="is a file"):
        partition(GRAPH, 2, f"{address}/other/letter.txt")
    assert read_manifest(out) == made and system.cat_file(f"{address}/other/letter.txt") == b"mine"


def test_what_a_killed_upload_left_is_no_shards_and_is_replaced(bucket):
    address, system, _ = bucket
    system.pipe_file(f"{address}/a/{UNFINISHED}", b"")
    system.pipe_file(f"{address}/a/part7/structure.safetensors", b"half")
    assert not is_shards(f"{address}/a")
    with pytest.raises(InputError, match="no shards"):
        read_manifest(f"{address}/a")
    with pytest.raises(InputError, match="exists"):
        partition(GRAPH, 2, f"{address}/a")
    made = partition(GRAPH, 2, f"{address}/a", force=True)
    assert {*names_at(located(f"{address}/a"))} == {*made["files"], "manifest.json"}


def refused(capfd, *arguments, names):
    """Exit code 2, one line that names these, and no traceback."""
    assert main([*map(str, arguments)]) == 2
    text = capfd.readouterr().err
    assert "Traceback" not in text
    for name in names:
        assert name in text, text
    return text


def test_a_bucket_that_forbids_writing_or_is_not_there(bucket, capfd):
    """The work does not begin, so what is there stays, and nothing new is."""
    address, system, store = bucket
    made = partition(GRAPH, 2, f"{address}/a")
    before = system.find(address)
    store.is_forbidden = lambda method, path: method in ("PUT", "POST", "DELETE")
    for options in ((), ("--force",)):
        out = f"{address}/{'a' if options else 'b'}"
        text = refused(capfd, "partition", GRAPH, "--parts", 2, "--out", out, *options, names=[out, "PermissionError"])
        assert "METIS" not in text
    refused(capfd, "convert", GRAPH, "--out", f"{address}/g.npz", names=[address])
    assert system.find(address) == before and read_manifest(f"{address}/a") == made
    missing = "s3://no-such-bucket/a"
    refused(capfd, "partition", GRAPH, "--parts", 2, "--out", missing, names=[missing])
    refused(capfd, "inspect", missing, names=[missing])
    assert not system.exists("s3://no-such-bucket")
    store.is_forbidden = lambda method, path: True
    refused(capfd, "inspect", f"{address}/a", names=[f"{address}/a", "PermissionError"])


def test_an_upload_that_fails_half_way_leaves_nothing_there_and_the_files_here(bucket, monkeypatch, capfd):
    address, system, store = bucket
    store.is_forbidden = lambda method, path: method == "PUT" and "part1" in path
    refused(capfd, "partition", GRAPH, "--parts", 2, "--out", f"{address}/a", names=["part1/"])
    assert system.find(address) == []
    (kept,) = Path(os.environ["DGL_GT_CACHE"], "outgoing").iterdir()
    verify(kept, read_manifest(kept))


def test_what_was_made_stays_here_where_credentials_expire_during_the_work(bucket):
    """Shards and a file: nothing can be listed or written any more; all that was made is whole, and the message names it."""
    address, _, store = bucket
    outgoing = Path(os.environ["DGL_GT_CACHE"], "outgoing")
    with pytest.raises(InputError, match="PermissionError") as error:
        with new_directory(f"{address}/a", SHARDS) as folder:
            (folder / "manifest.json").write_bytes(b"{}")
            store.is_forbidden = lambda *_: True
    (kept,) = outgoing.iterdir()
    assert str(kept) in str(error.value) and (kept / "manifest.json").read_bytes() == b"{}"
    shutil.rmtree(kept)
    for keep in (True, False):
        with pytest.raises(InputError, match="PermissionError") as error:
            with new_file(f"{address}/p.npz", keep=keep) as file:
                file.write(b"numbers")
        kept = [*outgoing.iterdir()]
        assert [each.read_bytes() for each in kept] == [b"numbers"] * keep
        for each in kept:
            assert str(each) in str(error.value) and each.suffix == ".npz"
            each.unlink()


def test_a_server_that_is_down_ends_with_words(bucket, monkeypatch, capfd):
    address, _, store = bucket
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    store.fail_every = 1
    refused(capfd, "inspect", f"{address}/a", names=[f"{address}/a"])
    assert max(store.requests.values()) <= 2


def test_a_damaged_copy_is_fetched_again_and_a_damaged_file_refused(bucket, capfd):
    address, system, store = bucket
    manifest = partition(GRAPH, 2, f"{address}/a")
    verify(f"{address}/a", manifest)
    path = files_of(f"{address}/a", manifest) / "part1" / "node_data.safetensors"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        verify(f"{address}/a", manifest)
        assert path.read_bytes() == whole
    path.unlink()
    system.pipe_file(f"{address}/a/part1/node_data.safetensors", whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(capfd, "inspect", f"{address}/a", names=[f"{address}/a/part1/node_data.safetensors"])
    system.rm_file(f"{address}/a/part1/node_data.safetensors")
    refused(capfd, "inspect", f"{address}/a", names=[f"{address}/a/part1/node_data.safetensors"])
    assert not path.exists()
    text = system.cat_file(f"{address}/a/manifest.json")
    system.pipe_file(f"{address}/a/manifest.json", text.replace(b'"nodes": 120', b'"nodes": 121'))
    refused(capfd, "inspect", f"{address}/a", names=[f"{address}/a/manifest.json"])


def _fetch(start, environment, url, path, entry):
    os.environ.update(environment)
    start.wait()
    cached(located(url), path, entry["bytes"], entry["sha256"])


def test_processes_that_race_for_one_file_fetch_it_once(tmp_path, bucket):
    address, _, store = bucket
    entry = partition(GRAPH, 2, f"{address}/a")["files"]["part0/node_data.safetensors"]
    url, path = f"{address}/a/part0/node_data.safetensors", tmp_path / "inner" / "copy"
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    environment = {name: os.environ[name] for name in os.environ if name.startswith(("AWS_", "DGL_GT_"))}
    racing = [context.Process(target=_fetch, args=(start, environment, url, path, entry)) for _ in range(3)]
    store.requests.clear()
    for each in racing:
        each.start()
    for each in racing:
        each.join(120)
    assert [each.exitcode for each in racing] == [0, 0, 0]
    assert store.requests["GET", "/graphs/a/part0/node_data.safetensors"] == 1
    assert path.stat().st_size == entry["bytes"] and not [
        each for each in path.parent.glob(".copy.*") if each.suffix != ".lock"
    ]


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:a-secret-key@graphs/a",
        "s3://me:wJ/a-secret-key@graphs/a",
        "S3://k:a-secret-key@",
        "https://host/a?X-Amz-Signature=a-secret-key",
        "https://host/a.csv?download=1&token=a-secret-key",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(tmp_path, url, capfd):
    for command in (
        ["partition", GRAPH, "--parts", 2, "--out", url],
        ["partition", url, "--parts", 2, "--out", tmp_path / "a"],
        ["partition", GRAPH, "--parts", 2, "--out", tmp_path / "a", "--node-table", url],
        ["inspect", url],
        ["train", url],
        ["predict", tmp_path, "--model", url, "--out", tmp_path / "p.npz"],
        ["predict", tmp_path, "--model", tmp_path, "--out", f"{url}/p.npz"],
        ["report", url, "-o", tmp_path / "r.html"],
        ["plan", url],
    ):
        assert "a-secret-key" not in refused(capfd, *command, names=["credentials"])


def test_a_driver_that_is_not_installed(tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    refused(
        capfd, "partition", GRAPH, "--parts", 2, "--out", "gs://graphs/a", names=["gs://graphs/a", "pip install gcsfs"]
    )
    refused(capfd, "inspect", "teleport://a", names=["teleport://a"])


def test_file_urls_are_paths(tmp_path, capfd):
    out = tmp_path / "a"
    assert main(["partition", GRAPH, "--parts", "2", "--out", f"file://{out}"]) == 0
    assert main(["inspect", f"file://{out}"]) == 0
    assert partition(GRAPH, 2, tmp_path / "b") == read_manifest(out)
    with pytest.raises(InputError, match="exists"):
        partition(GRAPH, 2, f"file://{out}")
    shutil.rmtree(out / "part1")
    refused(capfd, "inspect", f"file://{out}", names=[str(out / "part1")])


def test_which_places_are_urls(tmp_path, capfd):
    assert located("S3://Bucket/X") == "s3://Bucket/X" and located("S3://Bucket/X").name == "X"
    for place in ("file:///tmp/x", "file://localhost/tmp/x", "FILE:///tmp/x", "/tmp/x"):
        assert located(place) == Path("/tmp/x")
    assert located("a::b") == Path("a::b")
    refused(capfd, "inspect", "simplecache::s3://graphs/a", names=["simplecache::s3://graphs/a", "::"])
    for url in ("gs://graphs/a?user=me", "s3://graphs/a.csv?versionId=3"):
        with pytest.raises(InputError, match="query"):
            located(url, is_source=True)
    pattern = "s3://graphs/t?pe=a/x.parquet"
    assert names_tables(pattern) and located(pattern) == pattern
    (tmp_path / "run").mkdir()
    for directory in (tmp_path / "run", f"file://{tmp_path}/run"):
        with pytest.raises(InputError, match="would be in the directory of the run"):
            write_run_report(directory, tmp_path / "run" / "r.html")
        refused(capfd, "report", directory, "-o", tmp_path / "r.html", names=["holds neither"])
    refused(capfd, "report", f"file://{tmp_path}/none", "-o", tmp_path / "r.html", names=["is not a directory"])


def test_the_room_for_a_file_url_is_that_of_its_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=str(path)))
    monkeypatch.setenv("DGL_GT_CACHE", str(tmp_path / "cache"))
    assert free_disk_bytes(f"file://{tmp_path}/a") == str(tmp_path)
    assert free_disk_bytes("s3://graphs/a") == str(tmp_path / "cache")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_a_source_at_a_web_address_may_have_a_query_and_an_output_may_not(tmp_path, capfd):
    pytest.importorskip("aiohttp", reason="the driver of http://")
    (tmp_path / "web").mkdir()
    named_graph(tmp_path / "web")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=tmp_path / "web")) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/edges.csv"
        made = partition(f"{url}?download=1", 2, tmp_path / "a")
        assert made["nodes"] == partition(f"file://{tmp_path}/web/edges.csv", 2, tmp_path / "b", ids="names")["nodes"]
        refused(capfd, "partition", GRAPH, "--parts", 2, "--out", f"{url}?download=1", names=["query"])
        server.shutdown()


def test_a_file_that_must_be_local(tmp_path, capfd):
    partition(GRAPH, 1, tmp_path / "a")
    url = "s3://graphs/f.yaml"
    for arguments in (["train", tmp_path / "a", "--config", url], ["plan", tmp_path / "a", "--profile", url]):
        refused(capfd, *arguments, names=[url, "local file"])
    for name in ("pairs.csv", "pairs.npz"):
        with pytest.raises(InputError, match="local file"):
            read_pairs(f"s3://graphs/{name}", None, {}, "a")


def test_what_a_killed_download_left_in_the_cache_is_removed(tmp_path, bucket):
    address, system, _ = bucket
    system.pipe_file(f"{address}/a", b"whole")
    (tmp_path / ".a.0123456789ab").write_bytes(b"wh")
    (tmp_path / ".ab.0123456789ab").write_bytes(b"of another file")
    cached(located(f"{address}/a"), tmp_path / "a", 5, hashlib.sha256(b"whole").hexdigest())
    assert {*os.listdir(tmp_path)} == {"a", ".a.lock", ".ab.0123456789ab"}


def test_put_and_get_of_one_file(tmp_path, bucket):
    address, system, _ = bucket
    (tmp_path / "a").write_bytes(b"\0" * 5000)
    put(tmp_path / "a", located(f"{address}/x/y"))
    get(located(f"{address}/x/y"), tmp_path / "inner" / "b")
    assert (tmp_path / "inner" / "b").read_bytes() == b"\0" * 5000
    with pytest.raises(InputError, match="x/z"):
        get(located(f"{address}/x/z"), tmp_path / "inner" / "c")
    put(tmp_path / "a", located(f"file://{tmp_path}/inner/b"))
    with pytest.raises(InputError, match="no-file"):
        get(tmp_path / "no-file", tmp_path / "inner" / "c")
    assert os.listdir(tmp_path / "inner") == ["b"]
