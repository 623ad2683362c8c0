"""The one reader of shards: both frameworks, every depth, and files that do not fit their manifest."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dgl_gt.partition import partition, read_manifest
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.files import ShardReader


def owners(graph, parts):
    """Owners of the nodes, at random; the last part is empty."""
    return np.random.default_rng(0).integers(0, max(parts - 1, 1), graph.num_nodes)


@pytest.fixture(params=["numpy", "pt"])
def framework(request):
    if request.param == "pt":
        pytest.importorskip("torch")
    return request.param


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert np.asarray(array).dtype == expected[name].dtype and np.array_equal(array, expected[name]), name


@pytest.mark.parametrize("cut", ["edge", "vertex"])
def test_whole_files(awkward_graph, tmp_path, framework, cut):
    graph = awkward_graph(0)
    partition(graph, 3, tmp_path / "out", cut=cut, **({"owner": owners(graph, 3)} if cut == "edge" else {}))
    reader = ShardReader(tmp_path / "out", read_manifest(tmp_path / "out"), framework)
    for part in range(3):
        whole = {
            name: load_file(tmp_path / "out" / f"part{part}" / f"{name}.safetensors")
            for name in ("structure", "node_data", "edge_data")
        }
        assert_same(reader.structure(part), whole["structure"])
        assert_same(
            reader.structure(part, "indptr", "node_ids"), {k: whole["structure"][k] for k in ("indptr", "node_ids")}
        )
        owned, held = reader.rows(part)
        assert held == len(whole["structure"]["node_ids"])
        for kind in ("node_data", "edge_data"):
            for rows in (0, owned, held, 10**6):
                assert_same(reader.data(part, kind, rows=rows), {key: each[:rows] for key, each in whole[kind].items()})
        name = next(iter(whole["node_data"]))
        assert reader.data(part, "node_data", name, rows=owned).keys() == {name}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_deeper_shards_read_at_a_smaller_depth(awkward_graph, tmp_path, framework, depth):
    graph = awkward_graph(1)
    for name, hops in (("deep", 3), ("flat", depth)):
        partition(graph, 4, tmp_path / name, owner=owners(graph, 4), halo_depth=hops)
    deep, flat = (ShardReader(tmp_path / each, read_manifest(tmp_path / each), framework) for each in ("deep", "flat"))
    for part in range(4):
        assert deep.rows(part, depth) == flat.rows(part, depth)
        expected = {name: np.asarray(array) for name, array in flat.structure(part, depth=depth).items()}
        assert_same(deep.structure(part, depth=depth), expected)


@pytest.mark.parametrize("name", ["indptr", "recv_ptr", "send_ptr"])
def test_pointers_that_do_not_fit_the_manifest(awkward_graph, tmp_path, framework, name):
    """Counts by hop that add up to the right sum are not enough: compiled loops trust these pointers."""
    graph = awkward_graph(2)
    manifest = partition(graph, 2, tmp_path / "out", owner=np.arange(graph.num_nodes) % 2, halo_depth=2)
    path = tmp_path / "out" / "part0" / "structure.safetensors"
    arrays = load_file(path)
    length = len(ShardReader(tmp_path / "out", manifest).structure(0)[name])
    arrays[name][length - 1] -= 1
    save_file(arrays, path)
    with pytest.raises(InputError, match=f"is damaged: '{name}' of part 0 ends at .* after 1 hop, but the manifest"):
        ShardReader(tmp_path / "out", manifest, framework).structure(0)


def test_files_that_cannot_be_read(awkward_graph, tmp_path, framework):
    manifest = partition(awkward_graph(3), 2, tmp_path / "out")
    reader = ShardReader(tmp_path / "out", manifest, framework)
    (tmp_path / "out" / "part0" / "node_data.safetensors").write_bytes(b"rubbish")
    (tmp_path / "out" / "part1" / "node_data.safetensors").unlink()
    for part in range(2):
        with pytest.raises(InputError, match=f"cannot read .*part{part}/node_data.safetensors: "):
            reader.data(part, "node_data", rows=1)
    with pytest.raises(InputError, match="cannot read .*structure.safetensors: .*no_such_name"):
        reader.structure(0, "no_such_name")
