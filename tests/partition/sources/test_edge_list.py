"""Edge lists."""

import gzip

import numpy as np
import pytest
from source_checks import edges, refused, written

from dgl_gt.partition.errors import LeftOutWarning
from dgl_gt.partition.sources import text_table
from dgl_gt.partition.sources.load import load_graph
from dgl_gt.partition.system import user_files


@pytest.mark.parametrize(
    "name, text",
    [
        ("g.csv", "0,1\n1,2\n2,0\n"),
        ("g.csv", "src,dst\r\n0,1\r\n1,2\r\n2,0\r\n"),
        ("g.csv", "\ufeffsource,target\n0, 1\n1, 2\n2, 0"),
        ("g.csv", '"a","b"\n"0","1"\n"1","2"\n"2","0"\n'),
        ("g.csv", "0;1\n1;2\n2;0\n"),
        ("g.csv", "dst,src\n1,0\n2,1\n0,2\n"),
        ("g.csv", "line,to,from\n7,1,0\n7,2,1\n7,0,2\n"),
        ("g.tsv", "0\t1\tx y\n1\t2\tz\n2\t0\t\n"),
        ("g.txt", "# FromNodeId\tToNodeId\n0 1\n\n% more, 5\n1   2\n   \n  2 0  \n#\n"),
        ("g.txt", "from to\n0 1\n1 2\n# é\n2 0\n"),
        ("g.txt.gz", "0 1 3.5 a\n1 2 3 b\n2 0 1 c\n"),
        ("g.tsv.gz", "u\tv\n0\t1\n1\t2\n2\t0\n"),
    ],
)
@pytest.mark.parametrize("block", [7, 1 << 24])
def test_edge_list(tmp_path, monkeypatch, name, text, block):
    monkeypatch.setattr(text_table, "_BLOCK_BYTES", block)
    graph = load_graph(written(tmp_path / name, text))
    assert edges(graph) == [(0, 1), (1, 2), (2, 0)]
    assert graph.name == name and graph.indices.dtype == np.int32


def test_edge_list_columns_become_edge_data(tmp_path, small_blocks):
    text = "src,dst,time,weight,kind,mixed\n1,0,1600000000000,0.5,a,1\n0,1,3,2,b,2.5\n"
    graph = load_graph(written(tmp_path / "g.csv", text))
    assert set(graph.edge_data) == {"time", "weight", "mixed"}
    assert graph.edge_data["time"].dtype == np.int64 and graph.edge_data["time"].tolist() == [1600000000000, 3]
    assert graph.edge_data["weight"].dtype == np.float32 and graph.edge_data["weight"].tolist() == [0.5, 2]
    assert graph.edge_data["mixed"].tolist() == [1, 2.5]


def test_edge_list_against_a_plain_reading(tmp_path, small_blocks):
    listed = np.random.default_rng(0).integers(0, 50, (300, 2))
    path = written(tmp_path / "g.txt", "\n".join(f"{u} {v}" for u, v in listed))
    assert edges(load_graph(path)) == [tuple(edge) for edge in listed.tolist()]


def test_number_of_nodes_can_be_stated(tmp_path):
    path = written(tmp_path / "g.csv", "0,1\n")
    assert load_graph(path).num_nodes == 2
    assert load_graph(path, num_nodes=5).num_nodes == 5
    refused(path, "node id 1", "0..0", num_nodes=1)


@pytest.mark.parametrize(
    "text, words",
    [
        ("0,1\n1,x\n2,0\n", ["line 2", "'1,x'", "two node ids"]),
        ("# c\n\n0,1\n1\n2,0\n", ["line 4", "'1'"]),
        ("0 1\n1 2\n\n# c\n1.5 2\n", ["line 5", "'1.5 2'"]),
        ("0 1\n1.5 2\n", ["line 2"]),
        ("0 1\n-1 2\n", ["line 2", "'-1 2'"]),
        ("0 bob\n0 carol\n1\n", ["line 3", "'1'"]),
        ("src,dst,w\n0,1,2\n1,2,\n", ["line 3", "'1,2,'", "w"]),
        ("src,dst,w,w\n0,1,2,3\n", ["line 1", "'w'"]),
        ("0 99999999999999999999\n", ["line 1"]),
        ("", ["nodes"]),
        ("# nothing\n", ["nodes"]),
        ("5\n", ["line 1"]),
    ],
)
def test_edge_list_refused(tmp_path, small_blocks, text, words):
    refused(written(tmp_path / "g.txt", text), "g.txt", *words)


@pytest.mark.parametrize(
    "data", [bytes(range(256)), b"\x89PNG\r\n\x1a\n\0\0", "0 1\n".encode("utf-16"), b"0 1\n1 \xff\n"]
)
def test_edge_list_that_is_not_text(tmp_path, data):
    refused(written(tmp_path / "g.csv", data), "g.csv", "text")


def test_edge_list_without_ends_of_line(tmp_path, small_blocks, monkeypatch):
    monkeypatch.setattr(text_table, "_LONGEST_LINE_BYTES", 20)
    refused(written(tmp_path / "g.txt", "1" * 50), "line 1", "end of line")


def test_gzip_damaged(tmp_path):
    whole = gzip.compress(b"0 1\n1 2\n" * 1000)
    for damaged in (whole[:-20], b"0 1\n", whole[:20] + b"\0" * 20):
        refused(written_raw(tmp_path / "g.txt.gz", damaged), "g.txt.gz", "damaged")


def written_raw(path, data):
    path.write_bytes(data)
    return path


def test_bad_line_is_found_among_many(tmp_path):
    lines = [f"{i} {i + 1}" for i in range(20_000)]
    lines[13_456] = "oops 1"
    refused(written(tmp_path / "g.txt", "\n".join(lines)), "line 13457", "'oops 1'")


# ---- unusual contents, and numbers that cannot be true


@pytest.mark.parametrize(
    "text", ["src,dst,w\r0,1,2\r1,2,3\r", "src,dst,w\r\n0,1,2\r\n1,2,3\r\n", "src,dst,w\r0,1,2\n1,2,3"]
)
@pytest.mark.parametrize("block", [1, 5, 1 << 24])
def test_ends_of_line(tmp_path, monkeypatch, text, block):
    monkeypatch.setattr(text_table, "_BLOCK_BYTES", block)
    graph = load_graph(written(tmp_path / "g.csv", text))
    assert edges(graph) == [(0, 1), (1, 2)] and graph.edge_data["w"].tolist() == [2, 3]
    refused(written(tmp_path / "g.csv", text.rstrip() + "\r\n\rx,1,2"), "line 5", "'x,1,2'")


def test_columns_keep_their_digits(tmp_path, small_blocks):
    text = (
        "src,dst,ns,unix,half,third,late\n0,1,1700000000123456789,1700000000.25,0.5,0.1,7\n"
        "1,2,1700000000123456790,3,2,2,2.5\n"
    )
    data = load_graph(written(tmp_path / "g.csv", text)).edge_data
    assert {key: value.dtype.name for key, value in data.items()} == {
        "ns": "int64",
        "unix": "float64",
        "half": "float32",
        "third": "float64",
        "late": "float32",
    }
    assert data["ns"].tolist() == [1700000000123456789, 1700000000123456790]
    assert data["unix"].tolist() == [1700000000.25, 3] and data["late"].tolist() == [7, 2.5]
    for number in ("9223372036854775808", "99999999999999999999"):
        refused(written(tmp_path / "g.csv", f"src,dst,ns\n0,1,2\n1,2,{number}\n"), "'ns'", number)


def test_columns_left_out_are_named(tmp_path):
    text = ",src,dst,kind,w\n0,0,1,a,5\n1,1,2,b,6\n"
    with pytest.warns(LeftOutWarning, match=r"g.csv: left out: column 1 of g.csv \(no name\), edge data kind \(text\)"):
        graph = load_graph(written(tmp_path / "g.csv", text))
    assert graph.left_out == ("column 1 of g.csv (no name)", "edge data kind (text)") and list(graph.edge_data) == ["w"]
    graph = load_graph(written(tmp_path / "g.txt", "0 1 3 a\n1 2 4 b\n"), undirected=True)
    assert graph.left_out == ("column 3 (no header names it)", "column 4 (no header names it)")
    assert load_graph(written(tmp_path / "g.csv", "0,1\n")).left_out == ()


@pytest.mark.parametrize(
    "text, words",
    [
        ("0,1\n1,2\n1,2,3\n", ["line 3", "'1,2,3'", "the first line, 2"]),
        ("0 1 2\n1 0\n", ["line 2", "'1 0'"]),
        ("src,dst\n0,1\n1,2,3\n", ["line 3", "'1,2,3'", "the header, 2"]),
        ('src,dst,k\n0,1,"a,b"\n1,2,a,b\n', ["line 3", "the header, 3"]),
        ("src,dst\n0,1,5\n", ["line 2", "the header, 2"]),
    ],
)
def test_ragged_lines_are_refused(tmp_path, small_blocks, text, words):
    refused(written(tmp_path / "g.csv", text), *words)


def test_lines_of_spaces_are_no_lines(tmp_path, small_blocks):
    text = 'src,dst,k\n0,1,"a,b"\n  \n\t\n1,2,"c"\n\n'
    assert edges(load_graph(written(tmp_path / "g.csv", text))) == [(0, 1), (1, 2)]


def test_a_cell_beyond_what_tables_have(tmp_path):
    refused(
        written(tmp_path / "g.csv", "src,dst,t\n0,1," + "a" * 200_000 + "\n"), "line 2", "cannot be split into columns"
    )


def test_gzip_that_unpacks_beyond_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(user_files, "_TRUSTED_BYTES", 1 << 16)
    monkeypatch.setattr(text_table, "_BLOCK_BYTES", 1 << 16)
    bomb = written(tmp_path / "g.txt.gz", "0 1\n" * (1 << 18))
    refused(bomb, "g.txt.gz unpacks to over 500 times its size", "unpack it")
    refused(written(tmp_path / "g.graph.gz", "% c\n" * (1 << 18)), "unpacks to over 500 times")
    sound = written(tmp_path / "g.txt.gz", "\n".join(f"{i} {i + 1}" for i in range(20_000)))
    assert load_graph(sound).num_edges == 20_000


@pytest.mark.parametrize("rows", [(f"0,1,{2**60 + 1}", "1,2,0.5"), ("1,2,0.5", f"0,1,{2**60 + 1}")])
@pytest.mark.parametrize("gap", ["", "5,6,7\n" * 20])
def test_whole_numbers_that_floats_do_not_hold(tmp_path, small_blocks, rows, gap):
    path = written(tmp_path / "g.csv", f"src,dst,time\n{rows[0]}\n{gap}{rows[1]}\n")
    refused(path, "g.csv", "'time'", f"{2**60 + 1}")


def test_whole_numbers_that_floats_hold(tmp_path, small_blocks):
    path = written(tmp_path / "g.csv", f"src,dst,time\n0,1,{2**60}\n1,2,0.5\n2,0,1e300\n2,1,{2**53}\n")
    assert load_graph(path).edge_data["time"].tolist() == [2**60, 0.5, 1e300, 2**53]


@pytest.mark.parametrize(
    ("header", "expected"), [("src,x", (0, 1)), ("x,src", (1, 0)), ("x,dst_id", (0, 1)), ("target,x", (1, 0))]
)
def test_one_known_name_of_two_tells_both_ends(tmp_path, header, expected):
    assert edges(load_graph(written(tmp_path / "g.csv", f"{header}\n0,1\n"))) == [expected]


@pytest.mark.parametrize(
    ("header", "missing"),
    [("src,weight,sink", "the destination"), ("start,dst,w", "the source"), ("a,b,w", "the source")],
)
def test_a_header_that_does_not_name_both_ends_is_refused(tmp_path, header, missing):
    path = written(tmp_path / "g.csv", f"{header}\n0,5,1\n")
    refused(path, "line 1", f"known as {missing}", "src_id", "dst_id", header.replace(",", ", "))


def test_a_message_about_many_columns_is_short(tmp_path):
    (tmp_path / "wide.csv").write_text(",".join(f"column{i}" for i in range(2000)) + "\n" + ",".join("1" * 2000) + "\n")
    with pytest.raises(ValueError, match="column0") as error:
        load_graph(tmp_path / "wide.csv")
    assert len(str(error.value)) < 1000
