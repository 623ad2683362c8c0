"""Tables of nodes, and other node data that is added to a source."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_checks import refused, written

from dgl_gt.partition import partition, read_manifest
from dgl_gt.partition.errors import LeftOutWarning, SourceWarning
from dgl_gt.partition.graph import from_edges
from dgl_gt.partition.sources.load import load_graph

NODES = "node,feat_a,label,train_mask,b,val_mask\n2,5,1,0,6.5,1\n0,1,0,True,2,false\n1,3,,false,4,0\n"


def test_node_table(tmp_path, small_blocks):
    path = written(tmp_path / "g.csv", "0,1\n")
    graph = load_graph(path, node_data=written(tmp_path / "n.csv", NODES))
    assert graph.num_nodes == 3
    assert graph.node_data["feat"].dtype == np.float32
    assert graph.node_data["feat"].tolist() == [[1, 2], [3, 4], [5, 6.5]]
    assert graph.node_data["label"].tolist() == [0, -1, 1]
    assert graph.node_data["train_mask"].tolist() == [True, False, False]
    assert graph.node_data["val_mask"].tolist() == [False, False, True]


def test_node_table_without_ids_or_features(tmp_path):
    path = written(tmp_path / "g.csv", "0,1\n")
    graph = load_graph(path, node_data=str(written(tmp_path / "n.tsv.gz", "y\n4\n5\n6\n")))
    assert graph.num_nodes == 3 and list(graph.node_data) == ["label"]
    assert graph.node_data["label"].tolist() == [4, 5, 6]


def test_node_npz_and_dict(tmp_path):
    path = written(tmp_path / "g.csv", "0,1\n")
    np.savez(tmp_path / "n.npz", x=np.eye(2, dtype=np.float32), y=np.array([1, 0]))
    graph = load_graph(path, node_data=tmp_path / "n.npz")
    assert set(graph.node_data) == {"feat", "label"}
    feat = np.eye(2, dtype=np.float32)
    assert load_graph(path, node_data={"feat": feat}).node_data["feat"] is feat
    labelled = load_graph(from_edges([0], [1]), node_data={"label": np.array([[1], [2]])})
    assert labelled.node_data["label"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "text, words",
    [
        ("1,2\n3,4\n", ["header"]),
        ("", ["header"]),
        ("a,b\n", ["header"]),
        ("a,b\n1,2\n3,\n", ["line 3", "'b'", "nothing"]),
        ("a,b\n,2\n3,1\n", ["line 2", "'a'", "nothing"]),
        ("a,b\n1,2\n3,x\n", ["line 3", "'b'", "'x'"]),
        ("a,b\n1,2\n3,nan\n", ["line 3", "'b'", "'nan'"]),
        ("a,b\n1,2\n3,1e99\n", ["line 3", "'b'", "'1e99'"]),
        ("a,b\n1,2\n3,1_0\n", ["line 3", "'b'", "'1_0'"]),
        ('a,b\n1,"[2,3]"\n3,"4"\n', ["line 3", "'b'", "2 numbers"]),
        ("id,a\n0,1\n,2\n", ["line 3", "'id'", "nothing"]),
        ("a,train_mask\n1,yes\n3,no\n", ["line 2", "'train_mask'", "'yes'"]),
        ("label,class,a\n0,1,2\n1,0,2\n", ["label, class", "--label"]),
        ("label,class\n0,0\n1,1\n", ["label, class"]),
        ("a,train_mask\n1,1\n3,2\n", ["train_mask", "2"]),
        ("node,a\n0,1\n0,2\n", ["node 0 has several lines; list each node once"]),
        ("node,a\n0,1\n2,2\n", ["no row for node 1"]),
        ("node,id,a\n0,0,1\n1,1,2\n", ["node, id", "keep one"]),
        ("a,A\n0,0\n1,1\n", ["'a'"]),
        ("a\n1\n2\n3\n", ["n.csv has 3 rows", "2 nodes"]),
    ],
)
def test_node_table_refused(tmp_path, text, words):
    refused(from_edges([0], [1]), *words, node_data=written(tmp_path / "n.csv", text))


def test_node_data_refused(tmp_path):
    graph = from_edges([0], [1], node_data={"feat": np.eye(2)})
    np.savez(tmp_path / "n.npz", other=np.eye(2))
    refused(graph, "feat", "already", node_data={"feat": np.eye(2)})
    refused(graph, "node data is 1", "files", node_data=[1, 2])
    refused(graph, ".parquet", ".npz", node_data="n.parquet")
    refused(graph, "no node data", "train_mask", node_data=tmp_path / "n.npz")
    refused(graph, "no such file", node_data=tmp_path / "absent.csv")


def test_node_table_of_ragged_lines(tmp_path):
    table = written(tmp_path / "n.csv", "label,a\n1,2\n2,3,4\n")
    refused(from_edges([0], [1]), "line 3", "the header, 2", node_data=table)


# ---- what columns are for


def table_of(tmp_path, text, **options):
    """Load two nodes, 0 -> 1, with a table."""
    return load_graph(written(tmp_path / "g.csv", "0,1\n"), node_data=written(tmp_path / "n.csv", text), **options)


@pytest.mark.parametrize("name", ["label", "labels", "y", "class", "target", "Class"])
def test_labels_under_their_usual_names(tmp_path, name):
    graph = table_of(tmp_path, f"id,x,{name}\n0,5,2\n1,6,\n")
    assert graph.node_data["label"].tolist() == [2, -1] and graph.node_data["feat"].tolist() == [[5], [6]]
    assert graph.notes == (f"n.csv: label from {name} (none for 1 of 2 nodes); feat from x",)


def test_the_user_says_what_columns_are(tmp_path):
    text = "id,x,kind,y,z\n0,1,2,0.5,7\n1,3,4,0.25,8\n"
    graph = table_of(tmp_path, text, label="kind", skip=["z"])
    assert graph.node_data["label"].tolist() == [2, 4]
    assert graph.node_data["feat"].tolist() == [[1, 0.5], [3, 0.25]]
    graph = table_of(tmp_path, text, features=["z", "y"], label="kind")
    assert graph.node_data["feat"].tolist() == [[7, 0.5], [8, 0.25]]
    for options in ({"label": "none"}, {"features": ["x", "none"]}, {"skip": ["none"]}):
        with pytest.raises(ValueError, match="'none' of node data"):
            table_of(tmp_path, text, **options)
    with pytest.raises(ValueError, match="'text' holds 'a'.*--features"):
        table_of(tmp_path, "text,b\na,1\nb,2\n", features=["text"])
    for options in ({"label": 3}, {"features": "x"}, {"skip": [1]}, {"features": ["x", "x"]}):
        with pytest.raises(ValueError, match=next(iter(options))):
            table_of(tmp_path, text, **options)


def test_a_column_that_equals_the_labels_is_no_feature(tmp_path):
    graph, labels = written(tmp_path / "g.csv", "0,1\n"), written(tmp_path / "l.csv", "label\n1\n0\n")
    leak = written(tmp_path / "n.csv", "x,group\n5,1\n6,0\n")
    refused(graph, "n.csv", "'group'", "--skip group", node_data=[leak, labels])
    np.savez(tmp_path / "l.npz", y=np.array([1, 0]))
    refused(graph, "'group'", node_data=[tmp_path / "l.npz", leak])
    assert load_graph(graph, node_data=[leak, labels], skip=["group"]).node_data["feat"].tolist() == [[5], [6]]


def test_texts_booleans_and_lists(tmp_path):
    text = 'id,vip,name,vec,more,job\n0,True,ann,"0.1,0.2","[1 2 3]",cook\n1,false,bob,"3,4","[4, 5, 6]",smith\n'
    with pytest.warns(LeftOutWarning, match=r"column name of n.csv \(text\)"):
        graph = table_of(tmp_path, text, label="job")
    assert np.allclose(graph.node_data["feat"], [[1, 0.1, 0.2, 1, 2, 3], [0, 3, 4, 4, 5, 6]])
    assert graph.class_names == ("cook", "smith") and graph.node_data["label"].tolist() == [0, 1]
    assert graph.left_out == ("column name of n.csv (text)",)
    assert graph.notes == (
        "n.csv: label from job; feat from vip, vec, more",
        "n.csv: 2 classes from text: cook, smith",
    )


def test_names_of_classes_are_kept(tmp_path):
    text = "id,x,label\n0,1,b\n1,2,\n2,3,a\n"
    partition(
        written(tmp_path / "g.csv", "0,1\n1,2\n"),
        1,
        tmp_path / "shards",
        node_data=written(tmp_path / "n.csv", text),
    )
    manifest = read_manifest(tmp_path / "shards")
    assert manifest["class_names"] == ["a", "b"] and manifest["notes"][1] == "n.csv: 2 classes from text: a, b"


def test_a_header_behind_a_comment(tmp_path):
    graph = table_of(tmp_path, "# id x label\n0 5 1\n1 6 0\n")
    assert graph.node_data["label"].tolist() == [1, 0] and graph.node_data["feat"].tolist() == [[5], [6]]


@st.composite
def node_tables(draw):
    """The columns of a table by name, as text, and the node data that they are."""
    rows = draw(st.integers(1, 6))
    number = st.floats(-1e6, 1e6, width=32)
    columns, feat, left_out = {}, [], []
    names = draw(st.lists(st.sampled_from(["age", "vip", "vec", "city", "w_1"]), unique=True, max_size=5))
    for name in names:
        match name:
            case "vip":
                values = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
                columns[name] = [draw(st.sampled_from([str(value), str(value).lower()])) for value in values]
                feat.append(np.array(values, np.float32)[:, None])
            case "vec":
                values = draw(st.lists(st.tuples(number, number, number), min_size=rows, max_size=rows))
                columns[name] = ['"' + ",".join(map(repr, value)) + '"' for value in values]
                feat.append(np.array(values, np.float32))
            case "city":
                columns[name] = draw(st.lists(st.sampled_from(["Rome", "Oslo"]), min_size=rows, max_size=rows))
                left_out.append(name)
            case _:
                values = draw(st.lists(number, min_size=rows, max_size=rows))
                columns[name] = list(map(repr, values))
                feat.append(np.array(values, np.float32)[:, None])
    label = draw(st.sampled_from([None, "label", "class", "target"]))
    if label:
        columns[label] = draw(st.lists(st.sampled_from(["", "u", "v"]), min_size=rows, max_size=rows))
    order = draw(st.permutations(range(rows)))
    columns["id"] = list(map(str, order))
    return columns, feat, left_out, label, order


@settings(deadline=None, max_examples=60)
@given(table=node_tables())
def test_every_column_is_used_or_named(tmp_path_factory, table):
    columns, feat, left_out, label, order = table
    rows = [",".join(columns), *(",".join(row) for row in zip(*columns.values()))]
    folder = tmp_path_factory.mktemp("table")
    path = written(folder / "n.csv", "\n".join(rows) + "\n")
    graph = load_graph((np.array(order), np.array(order)), node_data=path)
    rank = np.argsort(order)
    assert ("feat" in graph.node_data) == bool(feat)
    if feat:
        assert np.array_equal(graph.node_data["feat"], np.concatenate(feat, axis=1)[rank])
    assert graph.left_out == tuple(f"column {name} of n.csv (text)" for name in left_out)
    if label:
        names = graph.class_names or ()
        of_rows = [names[i] if i >= 0 else "" for i in graph.node_data["label"]]
        assert of_rows == [columns[label][i] for i in rank]
    assert all(name in graph.notes[0] or name in left_out for name in columns if name != "id")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('id,name,label\n0,"Doe,1\n1,Roe,0\n', ["line 2", "quote"]),
        ("user_id,label,x\n1,0,5\n0,1,6\n", ["'user_id'", "call it id", "--skip user_id"]),
        ("id,Label\n0,ann\n1,bob\n2,cat\n", ["'Label'", "another name in each row"]),
        ("id,a\n0,1\n#py,2\n1,3\n", ["line 3", "'#py,2'", "quotes"]),
        ("# id 1\n0 5\n1 6\n", ["header"]),
        ("id,a,b\n0,1\n1,3\n", ["line 2", "2 columns", "3"]),
        ('id,"lat,lon"\n0,5\n1,\n', ["line 3", "'lat,lon'", """--skip '"lat,lon"\'"""]),
    ],
)
def test_tables_that_would_be_misread(tmp_path, text, words):
    refused((np.arange(3), np.arange(3)), *words, node_data=written(tmp_path / "n.csv", text))


EDGES = "source,target\n0,1\n1,2\n"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("n.tsv", "id\ta\tb\n0\t0,5\t2\n1\t1,5\t4\n2\t2,5\t6\n", ["line 2", "'a'", "'0,5'", "--skip a"]),
        ("n.csv", "id;x;y;v\n0;1,5;1;[1 2]\n1;2,5;0;[3 4]\n", ["line 2", "'x'", "'1,5'", "--skip x"]),
        ("n.csv", 'id,a,b\n0,"0,5",2\n1,"1,5",4\n2,"2,5",6\n', ["line 2", "'a'", "'0,5'"]),
        ("n.csv", 'id,a b\n0,"-2,50"\n1,"1,5"\n2,"2,5"\n', ["line 2", "'-2,50'", "--skip 'a b'"]),
        *(
            ("n.csv", f"{name},label\n2,0\n1,1\n0,1\n", [name, "call it id", "--skip", "--features"])
            for name in ("vertex", "idx", "node_idx", "nodes", "user", "paper", "name", "v", "no", "pk")
        ),
        ("n.csv", "f,v\n5,0\n6,1\n7,2\n", ["'v'"]),
        ("n.csv", "v,label\n2,0\n1,1\n1,1\n0,1\n", ["'v'"]),  # an id twice
        ("n.csv", "v,label\n2,0\n1,1\n9,1\n0,1\n", ["'v'"]),  # a node without edges
        ("n.csv", ",f,label\n2,5,0\n1,6,1\n0,7,1\n", ["column without a name"]),
        ("n.csv", "Unnamed: 0,f,label\n2,5,0\n1,6,1\n0,7,1\n", ["column without a name"]),
        ("n.csv", ",0,1\n2,5,1\n1,6,2\n0,7,3\n", ["column without a name"]),
        ("n.csv", "paper_id,label\n2,0\n1,1\n1,1\n0,1\n", ["'paper_id'"]),
        ("n.csv", "some_id,label\n230425980,0\n230425981,1\n230425982,1\n", ["'some_id'"]),
        ("n.csv", "id,Node Size\n0,1\n1,x\n2,3\n", ["line 3", "--skip 'Node Size'"]),
        ("n.csv", "ID,id,a\n0,2,1\n1,1,2\n2,0,3\n", ["line 1", "'id'"]),
        ("n.csv", 'id,name,a\n0,"two\nlines",1\n1,y,2\n2,x,3\n', ["line 2"]),
        ("n.csv", 'id,a,name\n0,1,x\n1,2,"two\nlines"\n2,3,x\n', ["line 3", "quote", '"two']),
        ("n.csv", 'id,a,name\n0,1,x\n1,2, "y\n2,3,"x"\n', ["line 3", "quote", '"y']),
        ("n.csv", "# some words here\n0,5,1\n1,6,2\n", ["header"]),
        ("n.tsv", 'id\tname\ta\n0\tz\t1\n1\t"y\t2\n2\t"x\t3\n', ["line 3", "quote", '"y']),
    ],
)
def test_tables_of_other_hands_are_refused(tmp_path, small_blocks, name, text, words):
    refused(written(tmp_path / "g.csv", EDGES), *words, node_data=written(tmp_path / name, text))


@pytest.mark.parametrize(
    ("text", "options", "feat"),
    [
        ("vertex,label\n2,0\n1,1\n0,1\n", {"features": ["vertex"]}, [[2], [1], [0]]),
        ("vertex,f,label\n2,5,0\n1,6,1\n0,7,1\n", {"skip": ["vertex"]}, [[5], [6], [7]]),
        ("id,v\n2,0\n1,1\n0,2\n", {}, [[2], [1], [0]]),
        (",id,f\n2,0,5\n1,1,6\n0,2,7\n", {}, [[5], [6], [7]]),
        (",f,label\n0,5,0\n1,6,1\n2,7,1\n", {}, [[5], [6], [7]]),
        (",f\n1,5\n2,6\n3,7\n", {}, [[5], [6], [7]]),  # as R writes numbers of rows
        ("Unnamed: 0,f\n2,5\n1,6\n0,7\n", {"skip": ["Unnamed: 0"]}, [[5], [6], [7]]),
        (",0,1\n0,5,1\n1,6,2\n2,7,3\n", {}, [[5, 1], [6, 2], [7, 3]]),
        ("group_id,flag\n1,0\n1,1\n0,1\n", {}, [[1, 0], [1, 1], [0, 1]]),
        ("ID,id,a\n0,2,1\n1,1,2\n2,0,3\n", {"skip": ["ID"]}, [[3], [2], [1]]),
        ("id,a\n2.0,1\n1.0,2\n0,3\n", {}, [[3], [2], [1]]),
        ("#f1,f2\n0.5,5\n1,6\n2,7\n", {}, [[0.5, 5], [1, 6], [2, 7]]),
        ("# id label x\n# y z w\n0 1 2\n1 0 3\n2 1 4\n", {}, [[2], [3], [4]]),
        ("# x y z\n# id label x\n# u v w\n2 1 4\n1 0 3\n0 1 2\n", {}, [[2], [3], [4]]),
        ('id,a\n0,"0.5,2"\n1,"1,2"\n2,"1,5"\n', {}, [[0.5, 2], [1, 2], [1, 5]]),
        ('id,a\n0,"[0,5]"\n1,"[1,5]"\n2,"[2,5]"\n', {}, [[0, 5], [1, 5], [2, 5]]),
        ('id,a\n0,"1,5,2"\n1,"2,5,2"\n2,"3,5,2"\n', {}, [[1, 5, 2], [2, 5, 2], [3, 5, 2]]),
    ],
)
def test_tables_of_other_hands_are_read(tmp_path, small_blocks, text, options, feat):
    graph = load_graph(written(tmp_path / "g.csv", EDGES), node_data=written(tmp_path / "n.csv", text), **options)
    assert graph.node_data["feat"].tolist() == feat


def test_ids_of_nodes_of_any_source_are_no_features(tmp_path):
    table = written(tmp_path / "n.csv", "v,label\n30,0\n10,1\n20,1\n0,1\n5,1\n")
    refused((np.array([0, 10, 20]), np.array([10, 20, 30])), "'v'", node_data=table, num_nodes=31)
    refused(from_edges([0, 1], [1, 2]), "'v'", node_data=written(tmp_path / "n.csv", "v,a\n2,5\n1,6\n0,7\n"))


def test_whole_numbers_of_a_table_are_ids_however_they_are_written(tmp_path):
    edges, table = "99999,100000\n100000,100001\n", "id,f\n99999,1\n1e+05,2\n100001.0,3\n"
    graph = load_graph(written(tmp_path / "g.csv", edges), node_data=written(tmp_path / "n.csv", table))
    assert graph.node_names.tolist() == [99999, 100000, 100001] and graph.node_data["feat"].tolist() == [[1], [2], [3]]
    table = written(tmp_path / "n.csv", "id,f\n99999,1\n1.5e+00,2\n")
    refused(tmp_path / "g.csv", "node 100000", node_data=table)


@pytest.mark.parametrize("word", ["", "NA", "None", "<NA>", "#N/A", "null"])
def test_nodes_without_a_label_are_counted(tmp_path, word):
    for labels in (("1", word, "0"), ("b", word, "a")):
        table = "id,label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels))
        graph = load_graph(written(tmp_path / "g.csv", EDGES), node_data=written(tmp_path / "n.csv", table))
        assert graph.node_data["label"].tolist() == [1, -1, 0] and "1 of 3 nodes" in graph.notes[0]
        assert word in graph.notes[0]


@pytest.mark.parametrize("word", ["?", "-", "unknown", "Unknown", "-1"])
def test_classes_that_may_be_none_are_said(tmp_path, word):
    table = "id,label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(["b", word, "b"]))
    graph = load_graph(written(tmp_path / "g.csv", EDGES), node_data=written(tmp_path / "n.csv", table))
    assert any(f"; {word} is a class" in note for note in graph.notes)


def test_a_table_from_the_row_of_node_zero_is_said(tmp_path):
    path, table = written(tmp_path / "g.csv", "1,2\n2,3\n"), written(tmp_path / "n.csv", "f\n1.5\n2\n3\n4\n")
    with pytest.warns(SourceWarning, match=r"begin at 1.*n\.csv.*column of ids"):
        assert not any("compact" in note for note in load_graph(path, node_data=table).notes)


@pytest.mark.parametrize("name", ["feats", "features", "node_feat", "x", "X", "feat"])
def test_features_in_an_npy_of_another_name(tmp_path, name):
    np.save(tmp_path / f"{name}.npy", np.eye(3))
    graph = load_graph(written(tmp_path / "g.csv", EDGES), node_data=tmp_path / f"{name}.npy")
    assert list(graph.node_data) == ["feat"] and bool(graph.notes) == (name not in ("x", "feat"))


def test_other_names_of_npy_files(tmp_path):
    np.save(tmp_path / "labels.npy", np.array(["b", "a", "b"]))
    np.save(tmp_path / "train_masks.npy", np.array([True, False, False]))
    np.save(tmp_path / "age.npy", np.arange(3))
    files = [tmp_path / f"{name}.npy" for name in ("labels", "train_masks", "age")]
    graph = load_graph(written(tmp_path / "g.csv", EDGES), node_data=files)
    assert set(graph.node_data) == {"label", "train_mask", "age"} and graph.class_names == ("a", "b")
    for words in ("labels.npy: it is read as label", "train_masks.npy", "age.npy: it is read as node data age"):
        assert words in " ".join(graph.notes)


def test_quotes_in_a_table_between_spaces(tmp_path):
    graph = table_of(tmp_path, 'id city label age v\n0 Rome 1 20 "1 2"\n1 "New York" 0 30 "3 4"\n')
    assert graph.node_data["feat"].tolist() == [[20, 1, 2], [30, 3, 4]] and graph.node_data["label"].tolist() == [1, 0]
    assert graph.left_out == ("column city of n.csv (text)",)


def test_missing_labels_thousands_and_numbers_in_a_header(tmp_path):
    graph = table_of(tmp_path, 'id,0,1,2,label\n0,5,"1,000","1,234.5",2\n1,6,"2,000,000","1,0",NA\n')
    assert graph.node_data["label"].tolist() == [2, -1] and graph.class_names is None
    assert graph.node_data["feat"].tolist() == [[5], [6]]
    assert graph.left_out == ("column 1 of n.csv (text)", "column 2 of n.csv (text)")
    graph = table_of(tmp_path, "id,label,when\n0,b,1289241911\n1,nan,1289241914\n", skip=["when"])
    assert graph.class_names == ("b",) and graph.node_data["label"].tolist() == [0, -1]


def test_another_name_of_the_label_is_noted(tmp_path):
    rows = "".join(f"{i},{'cat' if i % 2 else 'dog'},{3 - i % 2},{i}\n" for i in range(8))
    graph = load_graph((np.arange(8), np.arange(8)), node_data=written(tmp_path / "n.csv", f"id,label,kind,x\n{rows}"))
    assert [note for note in graph.notes if "--skip kind" in note] and not [n for n in graph.notes if "--skip x" in n]


def test_marks_between_columns_are_those_that_fit_all_lines(tmp_path):
    graph = load_graph(
        written(tmp_path / "g.csv", "0,1\n"),
        node_data=written(tmp_path / "n.tsv", "id\tlabel\tlat,lon\n0\t1\t5\n1\t0\t6\n"),
    )
    assert graph.node_data["label"].tolist() == [1, 0] and graph.node_data["feat"].tolist() == [[5], [6]]
    graph = table_of(tmp_path, "Id;Label;Name, Vorname\n0;1;Doe, J\n1;0;Roe, R\n")
    assert graph.node_data["label"].tolist() == [1, 0] and graph.left_out == ("column Name, Vorname of n.csv (text)",)


def test_columns_without_a_name_are_left_out(tmp_path):
    """As pandas writes its index."""
    graph = table_of(tmp_path, ",id,x,label\n0,0,5,1\n1,1,6,0\n")
    assert graph.node_data["feat"].tolist() == [[5], [6]] and graph.left_out == ("column 1 of n.csv (no name)",)
    graph = table_of(tmp_path, "id,Unnamed: 0,x\n0,0,5\n1,1,6\n")
    assert graph.node_data["feat"].tolist() == [[5], [6]] and graph.left_out == (
        "column Unnamed: 0 of n.csv (no name)",
    )
