"""Ids of a source and the numbers of nodes: gaps, first ids of 1, names, tables, lines of counts, banners."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_checks import edges, refused, written

from dgl_gt.partition import partition, pipeline, read_node_names
from dgl_gt.partition.errors import InputError, SourceWarning
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.sources.load import load_graph


def named_edges(graph):
    """Return the edges by the user's ids."""
    names = range(graph.num_nodes) if graph.node_names is None else graph.node_names.tolist()
    return [(names[u], names[v]) for u, v in edges(graph)]


# ---- gaps


def test_ids_with_gaps_are_numbered_anew_and_kept(tmp_path):
    path = written(tmp_path / "g.txt", "35 1033\n1033 900000\n900000 35\n")
    with pytest.warns(SourceWarning, match="900000, 3 are used.*as-they-are"):
        graph = load_graph(path)
    assert graph.num_nodes == 3 and graph.count_isolated() == 0
    assert graph.node_names.tolist() == [35, 1033, 900000]
    assert edges(graph) == [(0, 1), (1, 2), (2, 0)] and graph.notes[-1].startswith("g.txt: of the ids")
    kept = load_graph(path, ids="as-they-are")
    assert kept.num_nodes == 900_001 and kept.count_isolated() == 899_998 and kept.node_names is None
    assert load_graph(path, num_nodes=900_002).num_nodes == 900_002  # a stated number says that these nodes are meant


def test_ids_from_one_are_named(tmp_path):
    path = written(tmp_path / "g.txt", "1 2\n2 3\n3 1\n")
    with pytest.warns(SourceWarning, match="begin at 1.*compact"):
        graph = load_graph(path)
    assert graph.num_nodes == 4 and graph.count_isolated() == 1
    compact = load_graph(path, ids="compact")
    assert edges(compact) == [(0, 1), (1, 2), (2, 0)] and compact.node_names.tolist() == [1, 2, 3]


def test_self_loops_do_not_hide_isolated_nodes(tmp_path):
    graph = load_graph(written(tmp_path / "g.txt", "0 1\n3 3\n"), self_loops=True)
    assert graph.num_nodes == 4 and graph.count_isolated() == 2
    manifest = partition(graph, 2, tmp_path / "shards", virtual_nodes=1)
    assert manifest["isolated_nodes"] == 2 and manifest["node_names"] is None


@st.composite
def edge_files(draw):
    """A file of edges, with ids of some kind, and the ids and options that it should be read with."""
    kind = draw(st.sampled_from(["dense", "gaps", "from one", "huge", "names"]))
    count = draw(st.integers(2, 12))
    if kind == "names":
        alphabet = st.characters(whitelist_categories=["Lu", "Ll"])
        ids = draw(st.lists(st.text(alphabet, min_size=1, max_size=5), min_size=count, max_size=count, unique=True))
        ids = [f"n{name}" for name in ids]  # src, to and nan stay words of their own
    else:
        lowest, step = {"dense": (0, 1), "gaps": (0, 7), "from one": (1, 1), "huge": (5, 10**17)}[kind]
        ids = [lowest + step * i for i in range(count)]
    places = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    listed = [(i, (i + 1) % count) for i in range(count)] + draw(st.lists(places, max_size=10))
    mark = draw(st.sampled_from([",", "\t", " ", ";"]))
    head = draw(st.sampled_from(["", "# 12 30\n", f"src{mark}dst\n", f"# from{mark}to\n", "% x\n\n"]))
    text = head + "".join(f"{ids[u]}{mark}{ids[v]}\n" for u, v in listed)
    return kind, ids, listed, text


@settings(deadline=None, max_examples=60)
@given(file=edge_files(), ids=st.sampled_from([None, "compact", "names"]))
def test_edges_keep_the_ids_of_their_owner(tmp_path_factory, file, ids):
    kind, names, listed, text = file
    path = written(tmp_path_factory.mktemp("edges") / "g.txt", text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if kind == "names" and ids == "compact":
            with pytest.raises(InputError, match="node ids"):
                load_graph(path, ids=ids)
            return
        graph = load_graph(path, ids=ids)
    expected = [(names[u], names[v]) for u, v in listed]
    if ids == "names":
        expected = [(str(u), str(v)) for u, v in expected]
    assert named_edges(graph) == expected
    assert graph.count_isolated() <= (kind == "from one")
    said = any(issubclass(each.category, SourceWarning) for each in caught)
    assert said == (ids is None and kind in ("gaps", "from one", "huge"))
    assert graph.num_nodes == len(names) + (kind == "from one" and ids is None)


# ---- names


def test_names(tmp_path):
    graph = load_graph(written(tmp_path / "g.csv", 'ann,bob,2\n"bob","x, y",3\n ann , x2 ,4\n'))
    assert graph.node_names.tolist() == ["ann", "bob", "x, y", "x2"]
    assert edges(graph) == [(0, 1), (1, 2), (0, 3)]
    graph = load_graph(written(tmp_path / "g.csv", "source,target,w\nann,7,2\n7,ann,3.5\n"))
    assert named_edges(graph) == [("ann", "7"), ("7", "ann")] and graph.edge_data["w"].tolist() == [2, 3.5]
    graph = load_graph(written(tmp_path / "g.csv", "007,7\n"), ids="names")
    assert graph.node_names.tolist() == ["007", "7"]


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("ann,bob\nbob,cat\n", [("ann", "bob"), ("bob", "cat")]),  # a word that comes again is a name
        ("ann,bob\ncat,dan\n", [("ann", "bob"), ("cat", "dan")]),  # no line differs from the first
        ("user,item\nann,x\nbob,x\nann,y\n", [("ann", "x"), ("bob", "x"), ("ann", "y")]),
        ("src,dst\nann,bob\n", [("ann", "bob")]),
    ],
)
def test_a_first_line_of_words_is_an_edge_unless_the_others_differ(tmp_path, text, listed):
    graph = load_graph(written(tmp_path / "g.csv", text))
    assert named_edges(graph) == listed
    assert any("user, item" in note for note in graph.notes) == text.startswith("user")


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("ann,bob\nbob,\n", {}, ["line 2", "two names"]),
        ("ann,bob\nbob,ann\n", {"ids": "as-they-are"}, ["line 2", "--ids names"]),
        ("1,2\n2,x\n", {}, ["line 2", "--ids names"]),
        ("1,2\n", {"ids": "compact", "num_nodes": 3}, ["num_nodes is 3"]),
        ("1,2\n", {"ids": "compact", "node_data": {"feat": np.ones((2, 1))}}, ["node data", "column of ids"]),
        ("ann,bob\nbob,ann\n", {"num_nodes": 10}, ["num_nodes is 10", "names"]),
        ("0|1\n1|2\n", {}, ["one column", "tab"]),
        ("#py,java\njava,rust\nrust,go\n", {}, ["line 1", "'#py,java'", "quotes"]),
        ("ann,bob\n", {"ids": "names", "node_data": {"feat": np.ones((2, 1))}}, ["node data", "column of ids"]),
        ("1,2\n", {"ids": "some"}, ["'some'", "as-they-are, compact, names"]),
    ],
)
def test_ids_refused(tmp_path, text, options, words):
    refused(written(tmp_path / "g.csv", text), *words, **options)


def test_ids_of_a_graph_are_its_own():
    refused(from_edges([0], [5]), "numbered already", ids="compact")


def test_compact_drops_rows_of_nodes_without_edges(tmp_path):
    np.savez(tmp_path / "g.npz", edge_index=np.array([[1, 3], [3, 1]]), x=np.arange(5.0)[:, None], num_nodes=5)
    graph = load_graph(tmp_path / "g.npz", ids="compact")
    assert graph.node_data["feat"].tolist() == [[1], [3]] and graph.node_names.tolist() == [1, 3]
    np.savez(tmp_path / "g.npz", edge_index=np.array([[1, 3], [3, 1]]), x=np.arange(3.0)[:, None])
    refused(tmp_path / "g.npz", "'feat' ends at node 2", "node 3", ids="compact")


# ---- tables of nodes


def test_a_table_of_nodes_orders_names(tmp_path):
    graph = written(tmp_path / "g.csv", "ann,bob\nbob,cat\n")
    table = written(tmp_path / "n.csv", "id,a\ncat,3\nzoe,9\nann,1\nbob,2\n")
    more = written(tmp_path / "m.csv", "id,label\nann,0\nbob,1\ncat,1\nzoe,\n")
    graph = load_graph(graph, node_data=[table, more])
    assert graph.node_names.tolist() == ["cat", "zoe", "ann", "bob"]
    assert named_edges(graph) == [("ann", "bob"), ("bob", "cat")] and graph.count_isolated() == 1
    assert graph.node_data["feat"].tolist() == [[3], [9], [1], [2]]
    assert graph.node_data["label"].tolist() == [1, -1, 0, 1]


def test_a_table_of_nodes_with_gaps_names_all_nodes(tmp_path):
    path = written(tmp_path / "g.csv", "70,10\n10,30\n")
    table = written(tmp_path / "n.csv", "a,id\n1,30\n2,10\n3,70\n4,20\n")
    graph = load_graph(path, node_data=table)
    assert graph.node_names.tolist() == [10, 20, 30, 70] and named_edges(graph) == [(70, 10), (10, 30)]
    assert graph.node_data["feat"].ravel().tolist() == [2, 4, 1, 3]
    refused(path, "no row for node 0", ids="as-they-are", node_data=table)


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        ("id,a\n0,1\n1,2\n2,3\n", {}, ["n.csv ends at node 2", "names node 3", "add its row"]),
        ("a\n1\n2\n3\n", {}, ["n.csv ends at node 2", "names node 3", "add its row", "column of ids"]),
        ("id,a\n5,1\n1,2\n0,3\n", {}, ["n.csv has no row for node 2", "g.csv"]),
        ("id,a\nx,1\ny,2\n", {}, ["n.csv has no row for node 0", "g.csv"]),
        ("id,a\n0,1\n1,2\n", {"num_nodes": 4}, ["n.csv has no row for node 2"]),
        ("a\n1\n2\n", {"num_nodes": 4}, ["n.csv has 2 rows", "4 nodes"]),
    ],
)
def test_a_table_that_lacks_nodes_is_named(tmp_path, table, options, words):
    path = written(tmp_path / "g.csv", "0,1\n1,2\n2,3\n")
    refused(path, *words, node_data=written(tmp_path / "n.csv", table), **options)


def test_a_second_table_must_have_the_same_nodes(tmp_path):
    path = written(tmp_path / "g.csv", "5,7\n")
    first = written(tmp_path / "a.csv", "id,a\n5,1\n7,2\n")
    short = written(tmp_path / "b.csv", "id,label\n5,1\n")
    refused(path, "b.csv has no row for node 7", "a.csv", node_data=[first, short])
    long = written(tmp_path / "b.csv", "id,label\n5,1\n7,0\n8,0\n")
    refused(path, "b.csv has a row for node 8", "a.csv", node_data=[first, long])


# ---- lines that are no edges


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5 4\n0 1\n1 2\n2 3\n3 4\n", ["line 1", "'5 4'", "4 edges"]),
        ("4 4\n1 2\n2 3\n3 4\n4 1\n", ["line 1", "'4 4'"]),
        ("3 3 3\n1 2 5\n2 3 6\n3 1 7\n", ["line 1", "'3 3 3'"]),
        ("5 2\n0 1 0.5\n1 2 0.5\n", ["line 2", "'0 1 0.5'", "the first line, 2"]),
        ("12\n0 1\n1 2\n", ["line 1", "'12'"]),
        ("4 2\n0 1\n1 0\n2 3\n3 2\n", ["line 1", "'4 2'", "4 edges"]),
    ],
)
def test_a_first_line_of_counts_is_named(tmp_path, text, words):
    refused(written(tmp_path / "g.txt", text), *words)


def test_an_edge_is_not_taken_for_counts(tmp_path):
    for text in ("4 3\n0 1\n1 2\n2 7\n", "4 9\n0 1\n1 2\n", "2 1\n0 1\n", "0 3\n0 1\n1 2\n2 3\n"):
        assert load_graph(written(tmp_path / "g.txt", text), ids="as-they-are").num_edges == text.count("\n")


@pytest.mark.parametrize(
    "header", ["# src dst weight", "%from to weight", "# FromNodeId\tToNodeId\tweight", "#u,v,weight"]
)
def test_a_header_behind_a_comment_names_columns(tmp_path, header):
    mark = "," if "," in header else "\t" if "\t" in header else " "
    rows = "".join(mark.join(row) + "\n" for row in ("012", "123"))
    graph = load_graph(written(tmp_path / "g.txt", f"# made by x\n{header}\n{rows}"))
    assert graph.edge_data["weight"].tolist() == [2, 3] and edges(graph) == [(0, 1), (1, 2)]


def test_another_comment_is_no_header(tmp_path):
    graph = load_graph(written(tmp_path / "g.txt", "# three words here\n0 1 2\n1 2 3\n"))
    assert graph.edge_data == {} and graph.left_out == ("column 3 (no header names it)",)


@pytest.mark.parametrize(
    ("name", "text", "listed"),
    [
        ("g.csv", "1 2 0,5\n2 3 1,5\n", [(1, 2), (2, 3)]),  # decimal commas
        ("g.txt", "1 2\t1\t1082\n2 3\t1\t1083\n", [(1, 2), (2, 3)]),
        ("g.tsv", "Doe, J\tSmith, A\nSmith, A\tRoe, R\n", [("Doe, J", "Smith, A"), ("Smith, A", "Roe, R")]),
        ("g.csv", '"alice", "bob"\n"bob", "carol"\n', [("alice", "bob"), ("bob", "carol")]),
        ("g.csv", '"0", "1"\n"1", "2"\n', [(0, 1), (1, 2)]),
        (
            "g.txt",
            'from to weight\n"New York" Rome 5\nRome "New York" 6\n',
            [("New York", "Rome"), ("Rome", "New York")],
        ),
        ("g.csv", "source,target,2019\n0,1,5\n1,2,6\n", [(0, 1), (1, 2)]),
        ("g.txt", "Karate 1977\n0 1\n1 2\n", [(0, 1), (1, 2)]),
        ("g.csv", "v,w\n0,1\n1,2\n", [(0, 1), (1, 2)]),
        ("g.csv", "u,v,w\n0,1,5\n1,2,6\n", [(0, 1), (1, 2)]),
    ],
)
def test_columns_of_edge_lists(tmp_path, name, text, listed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SourceWarning)
        assert named_edges(load_graph(written(tmp_path / name, text), ids=None)) == listed


def test_what_is_assumed_of_an_edge_list_is_said(tmp_path):
    def notes(name, text, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SourceWarning)
            return " ".join(load_graph(written(tmp_path / name, text), **options).notes)

    assert "ids are text between commas, such as 'ann', 'bob'" in notes("g.csv", "ann,bob\nbob,cat\n")
    assert notes("g.csv", "ann,bob\nbob,cat\n", ids="names") == ""
    assert "(Karate, 1977) is taken for a header" in notes("g.txt", "Karate 1977\n0 1\n1 2\n")
    assert "--undirected" in notes("g.txt", "% sym positive\n0 1\n1 2\n")
    assert "--undirected" in notes("g.txt", "# Undirected graph: x.txt\n0 1\n1 2\n")
    assert "--undirected" in notes("g.csv", "Source,Target,Type\n0,1,Undirected\n")
    assert "begin at 1" in notes("g.csv", "1,2\n2,3\n", num_nodes=5)
    assert "begin at 1" in notes("g.csv", "1,2\n2,3\n", node_data={"feat": np.ones((5, 1))})
    assert "as-they-are" not in notes("g.csv", f"0,{2**62}\n")


# ---- shards


@pytest.mark.parametrize("ids", [None, "names"])
def test_shards_hold_the_ids_of_nodes(tmp_path, ids):
    path = written(tmp_path / "g.txt", "35 1033\n1033 900000\n900000 35\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SourceWarning)
        manifest = partition(path, 2, tmp_path / "shards", ids=ids, virtual_nodes=1)
    names = read_node_names(tmp_path / "shards")
    assert names.tolist() == (["35", "1033", "900000"] if ids else [35, 1033, 900000])
    assert manifest["node_names"] == ("text" if ids else "integers")
    assert (tmp_path / "shards" / "node_names.txt").read_text() == "35\n1033\n900000\n"
    (tmp_path / "shards" / "node_names.txt").write_text("35\n1033\n900001\n")
    with pytest.raises(InputError, match=r"node_names\.txt.*checksum"):
        read_node_names(tmp_path / "shards")


@pytest.mark.parametrize("largest", [2**62, 2**63 + 5])
def test_large_ids_come_back_exactly(tmp_path, largest):
    ends = np.array([[5, 7], [7, largest]], np.uint64 if largest >= 2**63 else np.int64)
    with pytest.warns(SourceWarning):
        partition(ends, 1, tmp_path / "shards")
    assert read_node_names(tmp_path / "shards").tolist() == [5, 7, largest]


def test_ids_as_pandas_writes_them_beside_missing_ones(tmp_path):
    table = written(tmp_path / "n.csv", "id,a\n1.0,5\n0.0,6\n")
    graph = load_graph((np.array([0]), np.array([1])), node_data=table)
    assert graph.node_data["feat"].ravel().tolist() == [6, 5] and graph.node_names is None


def test_streamed_shards_hold_the_ids_of_nodes(tmp_path, monkeypatch):
    used = np.sort(np.random.default_rng(0).choice(10**9, 200, replace=False))
    ends = used[np.random.default_rng(1).integers(0, 200, (2, 300))]
    np.save(tmp_path / "g.npy", ends)
    monkeypatch.setattr(pipeline, "choose_method", lambda *_: "streaming")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SourceWarning)
        manifest = partition(tmp_path / "g.npy", 2, tmp_path / "shards", memory=1 << 30)
    assert manifest["method"] == "streaming"
    assert np.array_equal(read_node_names(tmp_path / "shards"), np.unique(ends))
    assert manifest["isolated_nodes"] == len(np.unique(ends)) - len(np.unique(ends[:, ends[0] != ends[1]]))


def test_a_name_that_begins_like_a_comment_is_not_dropped(tmp_path):
    refused(written(tmp_path / "g.csv", "cat,dog\ndog,cat\n#dog,cat\n"), "line 3", "'#dog,cat'", "quotes")
    graph = load_graph(written(tmp_path / "g.csv", '# tags\ncat,dog\n"#dog",cat\n# the end\n'))
    assert named_edges(graph) == [("cat", "dog"), ("#dog", "cat")]


def test_a_header_above_numbers_is_no_edge_of_names(tmp_path):
    graph = load_graph(written(tmp_path / "g.csv", "userA,userB\n1,2\n3,4\n"), ids="names")
    assert named_edges(graph) == [("1", "2"), ("3", "4")] and "taken for a header" in graph.notes[0]


@pytest.mark.parametrize("ids", [[0, 1, 2, 3], [0, 5, 7, 100]])
def test_a_table_names_all_nodes_also_where_ids_are_compact(tmp_path, ids):
    table = written(tmp_path / "n.csv", "id,a\n" + "".join(f"{each},{i}\n" for i, each in enumerate(ids)))
    graph = load_graph((np.array(ids[:1]), np.array(ids[3:])), node_data=table, ids="compact")
    assert graph.node_names.tolist() == ids and graph.node_data["feat"].ravel().tolist() == [0, 1, 2, 3]


def test_ids_of_nineteen_digits_in_a_table_are_numbers(tmp_path):
    ids = [10**18, 10**18 + 7]
    table = written(tmp_path / "n.csv", f"id,a\n{ids[1]},1\n{ids[0]},2\n")
    graph = load_graph((np.array(ids[:1]), np.array(ids[1:])), node_data=table)
    assert graph.node_names.tolist() == ids and graph.node_data["feat"].ravel().tolist() == [2, 1]
