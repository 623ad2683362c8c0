"""Folders of tables with a YAML file that names node types and relations."""

import numpy as np
import pytest
from source_checks import refused

from dgl_gt.partition import load_graph, partition, read_node_names

pytest.importorskip("duckdb")

META = """
dataset_name: shop
node_data:
- {file_name: users.csv, ntype: user}
- {file_name: items.csv, ntype: item}
edge_data:
- {file_name: rates.csv, etype: [user, rates, item]}
- {file_name: knows.csv, etype: [user, knows, user], src_id_field: a, dst_id_field: b}
"""
USERS = (
    'node_id,feat,label,train_mask,val_mask,test_mask\nann,"0.5, 1",b,1,0,0\nbob,"2, -3e-1",a,0,1,0\ncy,"0,0",b,0,0,1\n'
)
ITEMS = "node_id,price\n7,1.5\n3,2\n"
RATES = 'src_id,dst_id,stars,embedding\nbob,3,5,"[1, 2]"\nbob,3,4,"[3, 4]"\nann,7,1,"[5, 6]"\n'
KNOWS = "a,b\ncy,ann\n"


@pytest.fixture
def folder(tmp_path):
    def make(**texts):
        (tmp_path / "shop").mkdir(exist_ok=True)
        names = {"meta.yaml": META, "users.csv": USERS, "items.csv": ITEMS, "rates.csv": RATES, "knows.csv": KNOWS}
        for name, text in (names | {key.replace("_", "."): text for key, text in texts.items()}).items():
            (tmp_path / "shop" / name).write_text(text)
        return tmp_path / "shop"

    return make


def test_ids_of_text_and_columns_with_types(folder, tmp_path):
    graph = load_graph(folder())
    assert dict(graph.schema.nodes) == {"user": 3, "item": 2}
    assert graph.node_names.tolist() == ["ann", "bob", "cy", "7", "3"]
    src, dst = graph.edges()
    assert src.tolist() == [1, 1, 0, 2] and dst.tolist() == [4, 4, 3, 0]
    assert np.allclose(graph.node_data["user/feat"], [[0.5, 1], [2, -0.3], [0, 0]])
    assert graph.node_data["user/label"].tolist() == [1, 0, 1] and graph.class_names == ("a", "b")
    assert graph.node_data["item/feat"].tolist() == [[1.5], [2]]
    assert graph.edge_data["user,rates,item/stars"].tolist() == [5, 4, 1]
    assert graph.edge_data["user,rates,item/embedding"].tolist() == [[1, 2], [3, 4], [5, 6]]
    partition(tmp_path / "shop" / "meta.yaml", 2, tmp_path / "out")
    assert read_node_names(tmp_path / "out").tolist() == graph.node_names.tolist()


def test_ids_from_zero_are_numbers_of_nodes(folder):
    users = "node_id,feat\n" + "".join(f'{i},"{i},1"\n' for i in range(3))
    graph = load_graph(
        folder(users_csv=users, items_csv="node_id\n0\n1\n", rates_csv="src_id,dst_id\n2,1\n", knows_csv="a,b\n0,1\n")
    )
    assert graph.node_names is None and [ends.tolist() for ends in graph.edges()] == [[2, 0], [4, 1]]


def test_parquet(folder):
    duckdb = pytest.importorskip("duckdb")
    path = folder()
    with duckdb.connect(":memory:") as con:
        con.execute(
            f"COPY (SELECT 3 + i AS node_id, [i, 2 * i] AS feat FROM range(3) t(i)) TO '{path}/items.parquet' (FORMAT parquet)"
        )
        con.execute(
            f"COPY (SELECT 'bob' AS src_id, 5 AS dst_id, true AS train_mask) TO '{path}/rates.parquet' (FORMAT parquet)"
        )
    graph = load_graph(
        folder(meta_yaml=META.replace("items.csv", "items.parquet").replace("rates.csv", "rates.parquet"))
    )
    assert graph.node_data["item/feat"].tolist() == [[0, 0], [1, 2], [2, 4]]
    assert graph.edges()[1][0] == 5 and graph.edge_data["user,rates,item/train_mask"].tolist() == [True]


def test_one_type_of_each_is_a_graph_without_types(folder):
    meta = (
        "node_data: [{file_name: users.csv}]\nedge_data: [{file_name: knows.csv, src_id_field: a, dst_id_field: b}]\n"
    )
    graph = load_graph(folder(meta_yaml=meta))
    assert graph.schema is None and graph.num_nodes == 3 and graph.node_type == "_V"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"rates_csv": "src_id,dst_id\nbob,9\n"}, ["user,rates,item", "rates.csv", "row 1", "node 9"]),
        ({"rates_csv": "src_id,dst_id\n3,3\n"}, ["rates.csv", "node 3"]),  # an item as a user
        ({"users_csv": "node_id\nann\nann\n"}, ["users.csv", "node ann"]),
        ({"meta_yaml": META.replace("[user, knows, user]", "[user, knows, item2]")}, ["user,knows,item2", "'item2'"]),
        ({"meta_yaml": META.replace("[user, knows, user]", "[user, rates, item]")}, ["user,rates,item", "twice"]),
        ({"meta_yaml": META.replace("ntype: item", "ntype: user")}, ["'user'", "twice"]),
        ({"meta_yaml": META.replace("[user, knows, user]", "[user, user]")}, ["etype"]),
        ({"meta_yaml": META + "graph_data: {file_name: g.csv}\n"}, ["graph_data"]),
        ({"meta_yaml": META.replace("knows.csv", "none.csv")}, ["none.csv"]),
        ({"meta_yaml": "edge_data: []\n"}, ["node_data"]),
        ({"items_csv": "node_id,price\n7,1.5\n3,\n"}, ["items.csv", "'price'", "row 2"]),
    ],
)
def test_bad_folders(folder, texts, words):
    refused(folder(**texts), *words)


def test_missing_cells_are_filled(folder):
    graph = load_graph(folder(items_csv="node_id,price\n7,1.5\n3,\n"), fill_missing="zero")
    assert graph.node_data["item/feat"].tolist() == [[1.5], [0]]
