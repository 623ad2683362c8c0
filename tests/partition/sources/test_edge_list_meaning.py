"""Edge lists of other hands: each is read as its owner means it, or refused by the value that is in doubt."""

import gzip
import warnings

import pytest
from source_checks import edges, refused, written

from dgl_gt.partition.errors import InputError, SourceWarning
from dgl_gt.partition.sources.load import load_graph


def loaded(tmp_path, name, text, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SourceWarning)
        return load_graph(written(tmp_path / name, text), **options)


def named_edges(graph):
    names = range(graph.num_nodes) if graph.node_names is None else graph.node_names.tolist()
    return " ".join(f"{names[u]}>{names[v]}" for u, v in edges(graph))


# ---- quotes: a row is a line

MANY = "".join(f"{i}\t{i + 1}\tx\n" for i in range(3000))


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("g.tsv", 'source\ttarget\ttext\n0\t1\t"hello\n1\t2\tok\n2\t3\t"bye\n3\t0\tx\n', ["line 2", '"hello']),
        ("g.tsv", 'source\ttarget\ttext\n0\t1\t"hello\n1\t2\tok\n2\t3\tx\n', ["line 2", '"hello']),
        ("g.tsv", f'source\ttarget\ttext\n{MANY}7\t8\t"hello\n{MANY}7\t8\t"bye\n', ["line 3002", '"hello']),
        ("g.tsv", '"abc\tdef\n"ghi\tjkl\nmno\tpqr\n', ["line 1", "abc"]),
        ("g.tsv", 'source\ttarget\n"abc\tdef\n"ghi\tjkl\nmno\tpqr\n', ["line 2", '"abc']),
        ("g.csv", 'source,target,title\n0,1,"two\nlines"\n1,2,ok\n', ["line 2", '"two']),
        ("g.csv", 'source,target,title\n0,1,"two,a\n5,6,lines"\n1,2,ok\n', ["line 2", '"two']),
        ("g.txt", '0 1 "two\n1 2 lines"\n', ["line 1", '"two']),
        ("g.csv", 'source,target,t\n0,1, "abc\n1,2,x\n', ["line 2", '"abc']),
        ("g.csv", 'source,target\na,b\nb, "abc\nc,d"\n', ["line 3", '"abc']),
    ],
)
def test_a_quote_that_does_not_end_in_its_line(tmp_path, request, small, name, text, words):
    if small:
        request.getfixturevalue("small_blocks")
    refused(written(tmp_path / name, text), "quote must end in its line", *words)


@pytest.mark.parametrize(
    ("name", "text", "listed"),
    [
        ("g.tsv", 'TV 12"\tTV 14"\nTV 14"\tTV 15"\n', 'TV 12">TV 14" TV 14">TV 15"'),
        ("g.csv", 'source,target\n"12"" vinyl",LP\nLP,"a, ""b"""\n', '12" vinyl>LP LP>a, "b"'),
        ("g.csv", 'a,b,t\nx,y,"q,"\ny,z, ",r"\n', "x>y y>z"),
        ("g.tsv", '"Weird Al" Yankovic\tBob\nBob\tCy\n', "Weird Al Yankovic>Bob Bob>Cy"),
        ("g.txt", '"New York" Rome\nRome 5"\n', 'New York>Rome Rome>5"'),
    ],
)
def test_quotes_that_end(tmp_path, small_blocks, name, text, listed):
    if text.startswith("a,b"):
        text = text.replace("a,b", "src,dst")
    assert named_edges(loaded(tmp_path, name, text)) == listed


# ---- headers, also behind a comment


@pytest.mark.parametrize(
    ("header", "listed"),
    [
        ("to_node,from_node", "1>0 2>1"),
        ("to_node,x", "1>0 2>1"),
        (":END_ID,:START_ID", "1>0 2>1"),
        (":END_ID(Person),:START_ID(Person)", "1>0 2>1"),
        ("end,start", "1>0 2>1"),
        ("target_node,source_node", "1>0 2>1"),
        ("target_name,source_name", "1>0 2>1"),
        ("dest,orig", "1>0 2>1"),
        ("tgt,src", "1>0 2>1"),
        ("v,u", "1>0 2>1"),
        ("node_2,node_1", "1>0 2>1"),
        ("#ToId,FromId", "1>0 2>1"),
        ("# ToNodeId,FromNodeId\n# Nodes: 3 Edges: 2", "1>0 2>1"),
        ("# to from\n# made by x", "1>0 2>1"),
        ("citing,cited", "0>1 1>2"),
    ],
)
def test_names_of_both_ends(tmp_path, header, listed):
    assert named_edges(loaded(tmp_path, "g.csv", f"{header}\n0,1\n1,2\n")) == listed


@pytest.mark.parametrize(
    ("text", "listed", "data"),
    [
        ("# weight source target\n# ------\n2 0 1\n3 1 2\n", "0>1 1>2", {"weight": [2, 3]}),
        ("# FromNodeId ToNodeId Weight\n# Nodes: 3 Edges: 2\n0 1 2\n1 2 3\n", "0>1 1>2", {"Weight": [2, 3]}),
        ("# FromNodeId ToNodeId Weight\n0\t1\t2\n1\t2\t3\n", "0>1 1>2", {"Weight": [2, 3]}),
        ("# source target weight\n# x y km\n0 1 2\n1 2 3\n", "0>1 1>2", {"weight": [2, 3]}),
        ("#a,source\n0,1\n1,2\n", "1>0 2>1", {}),
        ("# from 1990 to 2000\n0 1 5 2\n1 2 3 1\n", "0>1 1>2", {}),  # prose
        ("# distance from 0 to 5\n0 1 5 2 1\n1 2 3 1 1\n", "0>1 1>2", {}),
        ("u,v,source,target\n0,1,5,6\n1,2,6,7\n", "5>6 6>7", {"u": [0, 1], "v": [1, 2]}),
        ("source,target,start,end\n0,1,5,6\n1,2,6,7\n", "0>1 1>2", {"start": [5, 6], "end": [6, 7]}),
    ],
)
def test_the_header_is_the_line_that_names_both_ends(tmp_path, text, listed, data):
    graph = loaded(tmp_path, "g.csv", text)
    assert named_edges(graph) == listed
    assert {key: value.tolist() for key, value in graph.edge_data.items()} == data


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#BioGRID Interaction ID\tEntrez A\tEntrez B\n0\t3\t1\n1\t4\t2\n", ["line 1", "Entrez A"]),
        ("#a,b,c\n# made by x\n0,3,1\n1,4,2\n", ["line 1", "a, b, c"]),
        ("# edge_id user_a user_b\n0 3 1\n1 4 2\n", ["line 1", "user_a"]),
        ("#weight,source,x\n0,3,1\n1,4,2\n", ["line 1", "weight", "destination"]),
        ("gene_a\tgene_b\tscore\nTP53\tMDM2\t0.9\nBRCA1\tBARD1\t0.8\n", ["line 1", "gene_a"]),
        ("gene_a\tgene_b\tscore\nTP53\tMDM2\t0.9\n", ["line 1", "gene_a"]),
        ("source,from,to\n1,10,20\n1,20,30\n", ["line 1", "source and from"]),
        ("source,to,target\n1,10,20\n1,20,30\n", ["line 1", "to and target"]),
        ("source,from\n1,10\n1,20\n", ["line 1", "source and from"]),
        ("#source,from,to\n1,10,20\n1,20,30\n", ["line 1", "source and from"]),
    ],
)
def test_headers_that_do_not_tell_the_ends(tmp_path, text, words):
    refused(written(tmp_path / "g.txt", text), *words)


@pytest.mark.parametrize(
    ("text", "listed", "said"),
    [
        ("ann,abc\nann,12\nbob,13\n", "ann>abc ann>12 bob>13", False),  # numbers among the names of one end
        ("zip_a,zip_b\n007,08\n08,9\n", "007>08 08>9", True),
        ("ann,target\nbob,dan\n", "bob>dan", True),  # may be an edge
    ],
)
def test_a_first_line_that_is_taken_for_a_header_is_said(tmp_path, text, listed, said):
    graph = loaded(tmp_path, "g.csv", text)
    assert named_edges(graph) == listed and any("for a header" in note for note in graph.notes) == said


@pytest.mark.parametrize(
    ("text", "options", "listed"),
    [
        ("zip1,zip2\n00501,10001\n007,7\n", {}, "00501>10001 007>7"),
        ("007,7\n7,08\n", {}, "007>7 7>08"),
        ("007,7\n7,08\n", {"ids": "as-they-are"}, "7>7 7>8"),
        ("0,10\n10,0.05\n", {"ids": "names"}, "0>10 10>0.05"),
        ("src,dst,zip\n0,10,007\n10,100,1\n", {"ids": "as-they-are"}, "0>10 10>100"),
        ("src,dst,zip\n0,1,007\n1,2,1\n", {}, "0>1 1>2"),
        ("source,target\n0,1.0\n1,2.0\n", {}, "0>1 1>2"),
        ("source,target\n0.0,1.\n1.00,2\n", {}, "0>1 1>2"),
        ("from,to\n99999,1e+05\n1e+05,100001\n", {}, "99999>100000 100000>100001"),
        ("from,to\n99999,100000\n1.00001E+05,99999\n", {}, "99999>100000 100001>99999"),
        ("src,dst,w\n0,1.0,2\n1,2,0.5\n", {}, "0>1 1>2"),
        ("0,1,NA\n1,2,3\n2,0,4\n", {}, "0>1 1>2 2>0"),
        ("0 1 ?\n1 2 3\n2 0 4\n", {}, "0>1 1>2 2>0"),
        ("0,1,\n1,2,3\n2,0,4\n", {}, "0>1 1>2 2>0"),
        ("ann\tbob\t0,5\nbob\tcy\t1,5\n", {}, "ann>bob bob>cy"),
        ("ann;bob;0,5\nbob;cy;1,5\n", {}, "ann>bob bob>cy"),
        ("Smith, John;Doe, Jane\nDoe, Jane;Lee, Kim\n", {}, "Smith, John>Doe, Jane Doe, Jane>Lee, Kim"),
    ],
)
@pytest.mark.parametrize("small", [False, True])
def test_ids_are_kept(tmp_path, request, small, text, options, listed):
    if small:
        request.getfixturevalue("small_blocks")
    assert named_edges(loaded(tmp_path, "g.csv", text, **options)) == listed


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("7,8\n8,007\n", {}, ["line 2", "'8,007'", "--ids names"]),
        ("src,dst\n" + "10,20\n" * 200 + "20,010\n", {}, ["line 202", "'20,010'", "--ids names"]),
        ("src;dst\n10;20\n20;010\n", {}, ["line 3", "'20;010'"]),
        ("NA,1\n1,2\n", {}, ["line 1", "'NA,1'"]),
        ("0,1\n1,1.5\n", {}, ["line 2", "'1,1.5'"]),
        ("0,1\n1,nan\n", {}, ["line 2", "'1,nan'"]),
        ("0,1\n1,-1.0\n", {}, ["line 2", "'1,-1.0'"]),
        ("0,1\n1,123e4\n", {}, ["line 2", "'1,123e4'"]),  # more likely a part of a hash
        (f"0,1.0\n1,{2**53 + 1}\n", {}, [f"{2**53 + 1}"]),
        ("4 3\nann bob\nbob cy\ncy dan\n", {"ids": "names"}, ["line 1", "'4 3'", "#"]),
        ("4\n0 1\n1 2\n", {}, ["line 1", "'4'", "#"]),
        ("p edge 4 3\ne 1 2\ne 2 3\n", {}, ["DIMACS"]),
        ("c a road map\nc\np sp 4 3\na 1 2 803\na 2 3 158\n", {}, ["DIMACS"]),
        ("# p sp 4 3\na 1 2 803\na 2 3 158\n", {}, ["DIMACS"]),
    ],
)
def test_ids_that_would_be_others(tmp_path, request, small, text, options, words):
    if small and f"{2**53 + 1}" not in text and not text.startswith("c"):
        request.getfixturevalue("small_blocks")
    refused(written(tmp_path / "g.csv", text), *words, **options)


@pytest.mark.parametrize(
    ("line", "cause", "other"),
    [("007,2,1", "node ids", "columns"), ("1,2,", "w", "columns"), ("1,2", "3", "ids"), ('1,2,"a', "quote", "ids")],
)
def test_the_true_cause_of_a_bad_row_is_named(tmp_path, line, cause, other):
    with pytest.raises(InputError, match=rf"line 3: '{line}' .*{cause}") as caught:
        load_graph(written(tmp_path / "g.csv", f"src,dst,w\n0,1,2\n{line}\n"))
    assert other not in str(caught.value)


# ---- names that begin like comments


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b\n#_x b\nb c\n", ["line 2", "'#_x b'"]),
        ("a b\nb c\n##y c\n", ["line 3", "'##y c'"]),
        ("a b\n#\N{PARTY POPPER} b\nb c\n", ["line 2", "#"]),
        ("a b\n%% b\n%_x c\n", ["line 3", "'%_x c'"]),
        ("source,target\n#a,#b\n#b,#c\n", ["line 2", "'#a,#b'"]),
        ("bob alice\n##linux bob\n", ["line 2", "'##linux bob'"]),
    ],
)
def test_rows_that_look_like_comments(tmp_path, text, words):
    refused(written(tmp_path / "g.txt", text), *words)


@pytest.mark.parametrize("comment", ["#1,2", "# nodes: 3, edges: 3", "# see Smith, 2020"])
def test_comments_among_numbers(tmp_path, comment):
    assert named_edges(loaded(tmp_path, "g.csv", f"src,dst\n0,1\n{comment}\n2,0\n{comment}\n")) == "0>1 2>0"


def test_comments_among_names(tmp_path):
    text = "#---- ----\n## Title\nann bob\n# to be\n## or not\n#\nbob cy\n#end\n"
    assert named_edges(loaded(tmp_path, "g.txt", text)) == "ann>bob bob>cy"


@pytest.mark.parametrize("header", ["person,friend,start,end", "person,friend,u,v", "day,start,end"])
def test_start_and_end_are_no_ends_behind_other_columns(tmp_path, header):
    (tmp_path / "g.csv").write_text(f"{header}\n" + ",".join("123456"[: header.count(",") + 1]) + "\n")
    with pytest.raises(ValueError, match="start|u, v"):
        load_graph(tmp_path / "g.csv")


def test_a_first_line_that_may_be_an_edge_is_warned_of(tmp_path):
    (tmp_path / "g.txt").write_text("alice bob\ncarl dan\ndan eve\neve carl\n")
    with pytest.warns(SourceWarning, match="alice, bob"):
        assert load_graph(tmp_path / "g.txt").num_edges == 3


def test_a_row_whose_name_begins_like_a_comment(tmp_path):
    path = tmp_path / "tags.csv"
    path.write_text("# two tags, side by side\ncats,#dogs\n# a comment\n#dogs,birds\n")
    with pytest.raises(InputError, match=r"tags.csv, line 4: '#dogs,birds'"):
        load_graph(path, ids="names")
    path.write_text("# two tags, side by side\ncats,#dogs\n# a comment\nbirds,#dogs\n")
    assert load_graph(path, ids="names").num_edges == 2


@pytest.mark.parametrize("text", [" ", "\n \n", "\t\n"])
def test_a_file_of_blanks_is_refused_without_a_library_s_warning(tmp_path, text):
    path = tmp_path / "g.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(path, "0 nodes")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("user_id,item_id\n1,1\n1,2\n2,1\n", True),
        ("user,movie\n1,1\n1,2\n2,1\n", True),
        ("id_1,id_2\n1,1\n1,2\n2,1\n", False),
        ("userA,userB\n1,1\n1,2\n2,1\n", False),
        ("from,to\n1,1\n1,2\n2,1\n", False),
        ("% bip weighted\n1,1\n1,2\n", True),
    ],
)
def test_two_kinds_of_ends_are_said(tmp_path, text, said):
    graph = load_graph(written(tmp_path / "g.csv", text))
    assert any("one node" in note or "one here" in note for note in graph.notes) == said
