"""Tables of edges and nodes: folders, patterns and addresses of CSV, TSV and Parquet files."""

import errno
import gzip
import signal
import warnings
from dataclasses import replace

import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, add_virtual_nodes, convert, load_graph, partition, read_node_names
from dgl_gt.partition.sources import tables

duckdb = pytest.importorskip("duckdb", reason="tables are read by duckdb")
pa = pytest.importorskip("pyarrow", reason="the tests write Parquet by pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("fsspec")

IDS = np.array([f"u{number:03x}" for number in np.random.default_rng(1).permutation(40)])


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write(path, **columns):
    """Write a table in the form that the name of the file says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path, row_group_size=7)
        return path
    mark = "\t" if ".tsv" in path.name else ","
    rows = [mark.join("" if cell is None else str(cell) for cell in row) for row in zip(*columns.values())]
    text = "\n".join([mark.join(columns), *rows]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def random_edges():
    """120 edges among the first 38 of IDS: with parallel ones, self-loops, a hub, and nodes without an edge."""
    generator = np.random.default_rng(0)
    src, dst = generator.integers(0, 38, (2, 120))
    dst[:30], src[30:33], dst[30:33] = 5, 7, 7
    return src, dst, generator.integers(0, 100, 120) / 8


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".csv.gz", ".tsv"])
def test_many_files_with_text_ids_and_a_table_of_nodes(tmp_path, random_edges, suffix):
    src, dst, weight = random_edges
    for number, rows in enumerate(np.array_split(np.arange(120), 5)):
        at = tmp_path / "edges" / f"part-{number}{suffix}"
        write(at, src=IDS[src[rows]], dst=IDS[dst[rows]], weight=weight[rows])
    (tmp_path / "edges" / "_SUCCESS").touch()
    age = np.arange(40.0)
    nodes = write(tmp_path / f"nodes{suffix}", user_id=IDS, age=age, churned=["no", "yes"] * 20)
    graph = load_graph(tmp_path / "edges", node_table=nodes, id="user_id", label="churned")
    assert graph.node_names.tolist() == IDS.tolist() and graph.class_names == ("no", "yes")
    np.testing.assert_array_equal(graph.edges(), [src, dst])  # nodes as the table lists them, edges as the files do
    np.testing.assert_array_equal(graph.edge_data["weight"], weight)
    np.testing.assert_array_equal(graph.node_data["feat"], age[:, None])
    np.testing.assert_array_equal(graph.node_data["label"], np.arange(40) % 2)


def test_ids_without_a_table_are_numbered_in_ascending_order(tmp_path, random_edges):
    src, dst, _ = random_edges
    graph = load_graph(write(tmp_path / "e.parquet", a=IDS[src], b=IDS[dst]))
    names = np.unique(IDS[[*src, *dst]])
    np.testing.assert_array_equal(graph.node_names, names)
    np.testing.assert_array_equal(names[np.stack(graph.edges())], IDS[[src, dst]])


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(40),
        np.arange(40) * 3 + 2**40,
        np.arange(40).astype(np.uint64) + np.uint64(2**63),
        np.arange(40) - 20,  # hashes of 64 bits may be negative
    ],
    ids=["dense", "sparse", "uint64", "negative"],
)
@pytest.mark.parametrize("has_table", [False, True])
def test_whole_numbers_as_ids(tmp_path, random_edges, ids, has_table):
    src, dst, _ = random_edges
    table = {"node_table": write(tmp_path / "n.parquet", id=ids[::-1], feat=ids[::-1] % 7)} if has_table else {}
    graph = load_graph(write(tmp_path / "e.parquet", src=ids[src], dst=ids[dst]), **table)
    names = np.arange(graph.num_nodes) if graph.node_names is None else graph.node_names
    np.testing.assert_array_equal(names[np.stack(graph.edges())], ids[[src, dst]])
    if has_table:
        np.testing.assert_array_equal(graph.node_data["feat"][:, 0], names % 7)


def test_folders_are_relations_and_texts_are_encoded(tmp_path, random_edges):
    src, dst, weight = random_edges
    time = np.array(["2024-01-01", "2024-01-02T12:00"], "datetime64[us]")
    for name in ("pays", "follows"):
        at = tmp_path / "e" / name / "x.parquet"
        write(at, src=IDS[src], dst=IDS[dst], at=time[src % 2], kind=[None, "b", "a"] * 40)
    graph = load_graph(tmp_path / "e")
    assert graph.num_edges == 240
    np.testing.assert_array_equal(graph.edge_data["relation"], np.repeat([0, 1], 120))  # follows, then pays
    np.testing.assert_array_equal(graph.edge_data["kind"], np.tile([0, 2, 1], 80))  # a missing text is one, too
    seconds = time.astype("datetime64[s]").astype(float)[src % 2]
    np.testing.assert_array_equal(graph.edge_data["at"], np.tile(seconds, 2))
    assert any("0 = follows, 1 = pays" in note for note in graph.notes)
    (tmp_path / "e" / "follows").rename(tmp_path / "e" / "type=follows")
    (tmp_path / "e" / "pays").rename(tmp_path / "e" / "type=pays")
    graph = load_graph(f"{tmp_path}/e/*/*.parquet")
    np.testing.assert_array_equal(graph.edge_data["type"], np.repeat([0, 1], 120))


def test_relative_paths(tmp_path, random_edges, monkeypatch):
    src, dst, _ = random_edges
    for name in ("e.parquet", "f/e.parquet"):
        write(tmp_path / name, src=IDS[src], dst=IDS[dst])
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "n.csv", id=IDS)
    assert load_graph("e.parquet", node_table="n.csv").num_edges == 120
    assert load_graph("*.parquet").num_edges == load_graph("f").num_edges == load_graph("./f/").num_edges == 120
    assert load_graph("**/*.parquet").edge_data["relation"].tolist() == [0] * 120 + [1] * 120


def test_node_columns_of_all_kinds(tmp_path):
    nodes = write(
        tmp_path / "n.parquet",
        id=pa.array(["a", "b", "c", "d"]),
        age=pa.array([1, None, 3, 5]),
        city=pa.array(["x", None, "y", "x"]).dictionary_encode(),
        member=pa.array([True, False, True, True]),
        embedding=pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]),
        score=pa.array([0.5, None, 1.5, 2.5]),
        train_mask=pa.array([1, 0, 0, 1]),
        info=pa.array([{"k": 1}] * 4),
    )
    edges = write(tmp_path / "e.parquet", src=["a", "b"], dst=["c", "c"])
    graph = load_graph(
        edges,
        node_table=nodes,
        label="score",
        features=["age", "city", "member", "embedding"],
        fill_missing={"age": "mean"},
    )
    expected = [[1, 0, 1, 0, 1, 1, 2], [3, 1, 0, 0, 0, 3, 4], [3, 0, 0, 1, 1, 5, 6], [5, 0, 1, 0, 1, 7, 8]]
    np.testing.assert_array_equal(graph.node_data["feat"], expected)
    np.testing.assert_array_equal(graph.node_data["label"], np.array([0.5, np.nan, 1.5, 2.5], np.float32))
    np.testing.assert_array_equal(graph.node_data["train_mask"], [True, False, False, True])
    without = load_graph(edges, node_table=nodes, label="score", fill_missing=0)
    assert without.node_data["feat"].shape == (4, 4)  # age, member, embedding
    assert {"city", "info"} == {note.split()[1] for note in without.left_out}


def test_a_table_of_nodes_beside_another_source(tmp_path):
    edges = tmp_path / "e.csv"
    edges.write_text("src,dst\nx,y\ny,z\n")
    nodes = write(tmp_path / "n.parquet", id=["z", "y", "x", "w"], feat=[0.0, 1.0, 2.0, 3.0])
    graph = load_graph(edges, node_table=nodes)
    assert graph.node_names.tolist() == ["z", "y", "x", "w"]
    np.testing.assert_array_equal(graph.edges(), [[2, 1], [1, 0]])
    np.testing.assert_array_equal(graph.node_data["feat"][:, 0], [0, 1, 2, 3])


@pytest.mark.parametrize("name", ["row", "FILE", "s", "d", "t", "n", "id", "dgl-gt"])
def test_columns_of_any_name(tmp_path, random_edges, name):
    src, dst, weight = random_edges
    edges = write(tmp_path / "e.parquet", source=IDS[src], target=IDS[dst], **{name: weight[::-1]})
    nodes = write(tmp_path / "nodes.parquet", key=IDS, **{name: np.arange(40)[::-1]})
    graph = load_graph(edges, node_table=nodes, id="key", features=[name])
    np.testing.assert_array_equal(graph.edges(), [src, dst])
    np.testing.assert_array_equal(graph.edge_data[name], weight[::-1])
    np.testing.assert_array_equal(graph.node_data["feat"][:, 0], np.arange(40)[::-1])


def test_names_of_files_are_no_patterns_and_hidden_folders_are_left_out(tmp_path):
    write(tmp_path / "e" / "e[1].parquet", src=["a"], dst=["b"])
    write(tmp_path / "e" / "e1.parquet", src=["x"], dst=["y"])
    assert load_graph(tmp_path / "e" / "e[1].parquet").node_names.tolist() == ["a", "b"]
    for name in (".checkpoints/a.parquet", "_temporary/0/b.parquet"):
        write(tmp_path / "e" / name, src=["p"], dst=["q"])
    graph = load_graph(tmp_path / "e")
    assert graph.node_names.tolist() == ["a", "b", "x", "y"] and not graph.edge_data


def test_ids_of_text_files_stay_text(tmp_path):
    nodes = write(tmp_path / "n.parquet", id=[0, 1, 2], v=[0, 1, 2])
    good_ids = write(tmp_path / "a" / "a.csv", src=["1", "2"], dst=["2", "0"])
    np.testing.assert_array_equal(load_graph(good_ids.parent, node_table=nodes).edges(), [[1, 2], [2, 0]])
    for wrong in ("01", "1.4", "abc"):
        write(good_ids, src=[wrong], dst=["0"])
        refused("a.csv", "row 1", wrong, source=good_ids.parent, node_table=nodes)


def test_times_of_all_kinds_are_utc(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    stamp = np.array(["2024-01-01T00:00:00"], "datetime64[us]")
    write(tmp_path / "a.parquet", src=["a"], dst=["b"], at=pa.array(stamp, pa.timestamp("us")))
    write(tmp_path / "b.parquet", src=["a"], dst=["b"], at=pa.array(stamp, pa.timestamp("us", "UTC")))
    write(tmp_path / "c.csv", src=["a"], dst=["b"], at=["2024-01-01T09:00:00+09:00"])
    assert load_graph(tmp_path).edge_data["at"].tolist() == [1704067200.0] * 3


def test_empty_columns_and_files_fit_any_type(tmp_path):
    write(tmp_path / "a.csv", src=["a"], dst=["b"], w=[1.5], ok=["true"])
    write(tmp_path / "b.csv", src=["b"], dst=["c"], w=[None], ok=["False"])
    write(tmp_path / "c.csv", src=[], dst=[], w=[], ok=[])
    graph = load_graph(tmp_path, fill_missing={"w": 7})
    assert graph.edge_data["w"].tolist() == [1.5, 7] and graph.edge_data["ok"].tolist() == [1, 0]


def test_pieces_of_rows(tmp_path, random_edges, monkeypatch):
    src, dst, weight = random_edges
    for number, rows in enumerate((slice(0, 50), slice(50, 51), slice(51, 120))):
        write(tmp_path / "e" / f"{number}.parquet", src=IDS[src[rows]], dst=IDS[dst[rows]], w=weight[rows])
    for rows in (1, 7, 50, 1000):
        monkeypatch.setattr("dgl_gt.partition.sources.tables.ROWS", rows)
        graph = load_graph(tmp_path / "e", node_table=write(tmp_path / "n.parquet", id=IDS))
        np.testing.assert_array_equal(graph.edges(), [src, dst])
        np.testing.assert_array_equal(graph.edge_data["w"], weight)


@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_gaps_in_some_pieces_alone(tmp_path, monkeypatch, rows):
    monkeypatch.setattr("dgl_gt.partition.sources.tables.ROWS", rows)
    age, at = [50, 60, 70, 80, 10, None, 30, 20], [1700000001 + number for number in range(8)]
    edges = write(tmp_path / "e.parquet", src=list(range(8)), dst=[1] * 8, age=age, at=[*at[:7], None])
    nodes = write(tmp_path / "n.parquet", id=list(range(8)), age=age)
    graph = load_graph(edges, node_table=nodes, fill_missing={"age": "mean", "at": 7})
    mean = sum(filter(None, age)) / 7
    np.testing.assert_allclose(graph.edge_data["age"], [mean if each is None else each for each in age], rtol=1e-6)
    np.testing.assert_allclose(graph.node_data["feat"][5], mean, rtol=1e-6)
    assert graph.edge_data["at"].tolist() == [*at[:7], 7]
    assert sum("1 missing cell of" in note for note in graph.notes) == 3


def test_signals_and_a_full_disk(tmp_path, monkeypatch):
    write(tmp_path / "e.parquet", src=["a"], dst=["b"])
    stop = type("Stop", (BaseException,), {})

    def interrupted(*_):
        raise stop

    previous = signal.signal(signal.SIGALRM, interrupted)
    try:
        with pytest.raises(stop), tables.tables_open(None) as (con, _):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            tables.run(con, "SELECT sum(hash(a.i + b.i)) FROM range(200000) a(i), range(200000) b(i)", "rows")
    finally:
        signal.signal(signal.SIGALRM, previous)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dgl_gt.partition.sources.edge_tables.Column", full)
    refused("TMPDIR", source=tmp_path / "e.parquet")


def test_a_text_file_of_named_ends_is_a_table(tmp_path):
    write(tmp_path / "e.csv", buyer=["a", "b"], seller=["b", "a"])
    for _ in range(2):
        made = partition(tmp_path / "e.csv", 1, tmp_path / "s", ends=["buyer", "seller"], force=True)
        assert "node_ids.parquet" in made["files"]


def test_convert_says_what_it_cannot_keep(tmp_path):
    write(tmp_path / "e.parquet", src=["a"], dst=["b"])
    with pytest.raises(InputError, match="undirected"):
        convert(tmp_path / "e.parquet", tmp_path / "g.npz", undirected=True)
    graph = add_virtual_nodes(load_graph(tmp_path / "e.parquet"), 1)
    with pytest.raises(InputError, match="added"):
        convert(graph, tmp_path / "g.npz")
    convert(replace(load_graph(tmp_path / "e.parquet"), node_type="paper"), tmp_path / "g.npz")
    assert load_graph(tmp_path / "g.npz").node_type == "paper"


def test_shards_of_tables_converted_or_not(tmp_path, random_edges, capfd):
    src, dst, weight = random_edges
    edges = write(tmp_path / "e" / "x.parquet", a=IDS[src], b=IDS[dst], w=weight)
    nodes = write(tmp_path / "n.parquet", name=IDS, age=np.arange(40), kind=["p", "q", None, "p"] * 10)
    options = {"node_table": nodes, "id": "name", "label": "kind", "ends": ["b", "a"]}
    manifest = partition(edges, 3, tmp_path / "shards", **options, memory=1 << 30)
    graph = convert(edges, tmp_path / "g.npz", **options)
    assert graph.num_edges == 120
    other = partition(tmp_path / "g.npz", 3, tmp_path / "other", memory=1 << 30)
    same = {name for name in manifest["files"] if name != "node_ids.parquet"}
    assert {name: other["files"][name] for name in same} == {name: manifest["files"][name] for name in same}
    assert other["class_names"] == manifest["class_names"] == ["p", "q"]
    ids = pq.read_table(tmp_path / "shards" / "node_ids.parquet").to_pydict()
    assert ids == {"node": list(range(40)), "id": read_node_names(tmp_path / "shards").tolist()}
    command = ["convert", str(edges), "--node-table", str(nodes), "--id", "name", "--label", "kind", "--ends", "b,a"]
    assert main([*command, "--out", str(tmp_path / "h.npz")]) == 0
    first, second = np.load(tmp_path / "h.npz"), np.load(tmp_path / "g.npz")
    assert first.files == second.files and all(np.array_equal(first[name], second[name]) for name in first.files)
    assert main([*command, "--out", str(tmp_path / "h.npz")]) == 2  # exists
    assert "--force" in capfd.readouterr().err


def test_a_converted_graph_of_undirected_edges(tmp_path):
    np.savez(
        tmp_path / "u.npz", edge_index=np.array([[0, 1, 2], [1, 2, 2]]), directed=False, edge_data_w=np.arange(3.0)
    )
    convert(tmp_path / "u.npz", tmp_path / "v.npz")
    first, second = load_graph(tmp_path / "u.npz"), load_graph(tmp_path / "v.npz")
    np.testing.assert_array_equal(first.edges(), second.edges())
    np.testing.assert_array_equal(first.edge_data["w"], second.edge_data["w"])


# ---- addresses


def test_the_same_shards_from_a_bucket(tmp_path, random_edges, bucket):
    src, dst, weight = random_edges
    for number, rows in enumerate(np.array_split(np.arange(120), 3)):
        at = tmp_path / "edges" / f"kind={number % 2}" / f"{number}.parquet"
        write(at, src=IDS[src[rows]], dst=IDS[dst[rows]], weight=weight[rows])
    nodes = write(tmp_path / "nodes.csv", id=IDS, age=np.arange(40))
    address, system, _ = bucket
    system.put(str(tmp_path / "edges"), f"{address}/edges", recursive=True)
    system.put(str(nodes), f"{address}/nodes.csv")
    here = partition(tmp_path / "edges", 2, tmp_path / "a", node_table=nodes)
    there = partition(f"{address}/edges/", 2, tmp_path / "b", node_table=f"{address}/nodes.csv")
    assert there["files"] == here["files"] and there["source"] == f"{address}/edges/"
    graph = load_graph(f"{address}/edges/*/*.parquet", node_table=nodes)
    np.testing.assert_array_equal(graph.edge_data["weight"], load_graph(tmp_path / "edges").edge_data["weight"])
    np.savez(tmp_path / "g.npz", edge_index=np.stack([src, dst]))
    system.put(str(tmp_path / "g.npz"), f"{address}/g.npz")
    np.testing.assert_array_equal(load_graph(f"{address}/g.npz").edges(), [src, dst])
    np.save(tmp_path / "age.npy", np.arange(40.0))
    system.put(str(tmp_path / "age.npy"), f"{address}/age.npy")
    with_ages = load_graph(f"{address}/g.npz", node_data=f"{address}/age.npy")
    np.testing.assert_array_equal(with_ages.node_data["age"], np.arange(40.0))
    refused(f"{address}/no.npy", source=f"{address}/g.npz", node_data=f"{address}/no.npy")
    refused(f"{address}/nothing", source=f"{address}/nothing/")
    refused("s3://no-such-bucket", source="s3://no-such-bucket/e/*.parquet")
    refused("s3://no-such-bucket", source="s3://no-such-bucket/g.npz")


def test_an_address_without_a_driver():
    refused("teleport://a/b.parquet", source="teleport://a/b.parquet")


# ---- bad input: the message names the file, and the line or the column


def refused(*named, **arguments):
    with pytest.raises(InputError) as error:
        load_graph(arguments.pop("source"), **arguments)
    for name in named:
        assert str(name) in str(error.value)


def good(folder):
    edges = write(folder / "e" / "a.parquet", src=["a", "b"], dst=["b", "c"], w=[1.0, 2.0])
    return edges, write(folder / "n.parquet", id=["a", "b", "c"], age=[1.0, 2.0, 3.0])


def test_ids_that_do_not_fit(tmp_path):
    edges, nodes = good(tmp_path)
    refused("a.parquet", "row 2", "node c", source=edges, node_table=write(nodes, id=["a", "b"]))
    refused("n.parquet", "row 1", "row 3", "node a", source=edges, node_table=write(nodes, id=["a", "b", "a"]))
    refused("n.parquet", "row 2", "'id'", source=edges, node_table=write(nodes, id=["a", None, "c"]))
    refused("n.parquet", "'id'", "double", source=edges, node_table=write(nodes, id=[1.5, 2.5]))
    refused("a.parquet", "row 1", "'dst'", source=write(edges, src=["a"], dst=[""]))
    refused("a.parquet", "row 2", "'src'", source=write(edges, src=[1, None], dst=[1, 2]))
    refused("line of a text file", source=write(edges, src=["a\nb"], dst=["c"]))


def test_columns_that_are_not_known(tmp_path):
    edges, nodes = good(tmp_path)
    refused("ends (--ends)", "'to'", "src, dst, w", source=edges, ends=["src", "to"])
    refused("ends (--ends)", "one", source=edges, ends=["one"])
    refused("n.parquet", "id (--id)", "'key'", source=edges, node_table=nodes, id="key")
    refused("id (--id)", source=edges, id="key")
    refused("features (--features)", "'size'", source=edges, node_table=nodes, features=["size"])
    refused("label (--label)", "'size'", source=edges, node_table=nodes, label="size")
    refused("'size'", source=edges, node_table=nodes, skip=["size"])
    refused("'size'", source=edges, node_table=nodes, fill_missing={"size": 0})
    refused("fill_missing", "'median'", source=edges, fill_missing="median")
    refused("fill_missing", source="sample:communities?nodes=10", fill_missing=0)
    refused("ends", "sample", source="sample:communities?nodes=10", ends=["a", "b"])
    refused("a.parquet", "x, y, z", "--ends", source=write(edges, x=["a"], y=["b"], z=["c"]))
    refused("n.parquet", "--id", source=good(tmp_path)[0], node_table=write(nodes, key=["a"], age=[1]))


def test_cells_that_do_not_fit(tmp_path):
    edges, nodes = good(tmp_path)
    refused(
        "n.parquet",
        "row 2",
        "'age'",
        "--fill-missing",
        source=edges,
        node_table=write(nodes, id=["a", "b", "c"], age=[1, None, 3]),
    )
    refused(
        "n.parquet", "row 3", "'age'", source=edges, node_table=write(nodes, id=["a", "b", "c"], age=[1.0, 2.0, np.inf])
    )
    holed = [[1.0, 2.0], [3.0, None], [5.0, 6.0]]
    refused("n.parquet", "row 2", "'vec'", source=edges, node_table=write(nodes, id=["a", "b", "c"], vec=holed))
    refused(
        "x.parquet", "row 2", "'vec'", source=write(tmp_path / "x.parquet", src=[0, 1, 2], dst=[1, 2, 0], vec=holed)
    )
    at = pa.array([0, None, 1], pa.timestamp("us"))
    refused("x.parquet", "row 2", "'at'", source=write(tmp_path / "x.parquet", src=[0, 1, 2], dst=[1, 2, 0], at=at))
    lists = [[1.0], [2.0, 3.0], [4.0]]
    refused("n.parquet", "'vec'", "1 to 2", source=edges, node_table=write(nodes, id=["a", "b", "c"], vec=lists))
    refused("a.parquet", "row 1", "'w'", source=write(edges, src=["a"], dst=["b"], w=pa.array([None], pa.float64())))
    many = [f"text {number}" for number in range(5000)]
    refused("a.parquet", "'w'", "4096", source=write(edges, src=many, dst=many, w=many))


def test_a_column_that_changes_its_type_from_file_to_file(tmp_path):
    edges, _ = good(tmp_path)
    write(tmp_path / "e" / "b.parquet", src=["a"], dst=["b"], W=[1.0])
    refused("b.parquet", "'W'", "'w'", source=tmp_path / "e")
    write(tmp_path / "e" / "b.parquet", src=["a"], dst=["b"], w=["heavy"])
    refused("b.parquet", "'w'", "varchar", "double", "a.parquet", source=tmp_path / "e")
    write(tmp_path / "e" / "b.parquet", src=["a"], dst=["b"], w=[3])
    np.testing.assert_array_equal(load_graph(tmp_path / "e").edge_data["w"], [1, 2, 3])


def test_files_that_cannot_be_read(tmp_path):
    edges, nodes = good(tmp_path)
    whole = edges.read_bytes()
    edges.write_bytes(whole[: len(whole) // 2])  # half written
    refused("a.parquet", source=edges)
    edges.write_bytes(b"")
    refused("a.parquet", "empty", source=edges)
    edges.unlink()
    refused("a.parquet", source=edges)
    refused(tmp_path / "e", source=tmp_path / "e")
    refused("*.csv", source=tmp_path / "e" / "*.csv")
    text = tmp_path / "e" / "t.csv"
    text.write_bytes("src,dst,w\na,b,1\nb,c,2\n".encode("utf-16"))
    refused("t.csv", source=tmp_path / "e")
    text.write_bytes(b"src,dst,w\na,b,1\nb\xff,c,2\n")
    refused("t.csv", source=tmp_path / "e")
    text.write_text("src,dst,w\n" + "a,b,1\n" * 30_000 + "a,b,heavy\n")
    refused("t.csv", "30002", '"w"', source=tmp_path / "e")
    text.write_text("src,dst,w\n" + "a,b,1\n" * 30_000 + "a,b\n")
    refused("t.csv", "30002", source=tmp_path / "e")
    text.write_text("src,dst,w\na,b,1\nb,c\n")
    refused("t.csv", "columns", source=tmp_path / "e")
    text.write_text("a,b\nb,c\n")  # is the first line an edge?
    refused("a, b", "--ends", source=tmp_path / "e")
    text.write_text("src,dst,w\n")
    refused("t.csv", "no rows", source=tmp_path / "e")


def test_nothing_is_written_where_a_source_is_refused(tmp_path, capfd):
    edges, nodes = good(tmp_path)
    write(nodes, id=["a", "b"])
    before = sorted(tmp_path.rglob("*"))
    command = [str(edges), "--node-table", str(nodes), "--out"]
    assert main(["partition", *command, str(tmp_path / "s"), "--parts", "1"]) == 2
    assert main(["convert", *command, str(tmp_path / "g.npz")]) == 2
    assert sorted(tmp_path.rglob("*")) == before
    error = capfd.readouterr().err
    assert "node c" in error and "Traceback" not in error
