import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from dgl_gt.partition.cuts import metis
from dgl_gt.partition.cuts.balance import make_balance
from dgl_gt.partition.cuts.edge_cut import make_edge_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import from_edges, symmetrised


def owner_of(cut):
    return np.searchsorted(cut.ptr, cut.new_ids(), side="right") - 1


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_a_cut_is_a_permutation_with_slices(awkward_graph, parts):
    graph = awkward_graph(1)
    cut = make_edge_cut(graph, parts)
    assert sorted(cut.order) == list(range(graph.num_nodes))
    assert (cut.ptr[0], cut.ptr[-1], cut.parts) == (0, graph.num_nodes, parts)
    again = make_edge_cut(graph, parts)
    assert (again.order == cut.order).all() and (again.ptr == cut.ptr).all()


def test_metis_finds_two_communities():
    rng = np.random.default_rng(0)
    half = rng.permutation(2000) < 1000
    src, dst = rng.integers(0, 2000, (2, 40000))
    keep = (half[src] == half[dst]) | (rng.random(40000) < 0.02)
    owner = owner_of(make_edge_cut(from_edges(src[keep], dst[keep], 2000), 2))
    agreement = (owner == half).mean()
    assert max(agreement, 1 - agreement) > 0.99


def test_steps_are_balanced_on_a_power_law(real_graph):
    """What ranks compute, from the first attempt on; edges alone and nodes alone are less even."""
    edges = np.load(real_graph("email_enron"))["edge_index"]
    graph = from_edges(*np.concatenate([edges, edges[::-1]], axis=1))
    owner = owner_of(make_edge_cut(graph, 4))
    loads = make_balance(graph, 4).loads(owner)
    assert loads.max() / loads.mean() < 1.035


def test_clusters_bring_neighbours_together():
    """The nodes of a ring have random numbers; cluster order must bring most neighbours near each other."""
    n = 8000
    label = np.random.default_rng(0).permutation(n)
    graph = from_edges(label, np.roll(label, 1), n)
    new = make_edge_cut(graph, 1).new_ids()
    near = np.abs(new[label].astype(int) - new[np.roll(label, 1)]) < 1500
    assert near.mean() > 0.95


def test_given_owners_are_kept_and_may_leave_a_part_empty(awkward_graph):
    graph = awkward_graph(2)
    owner = np.random.default_rng(0).choice([0, 2, 3], graph.num_nodes)
    cut = make_edge_cut(graph, 4, owner=owner)
    assert (owner_of(cut)[np.arange(graph.num_nodes)] == owner).all()
    assert cut.ptr[1] == cut.ptr[2]


def test_a_graph_without_edges_is_dealt_out():
    cut = make_edge_cut(from_edges(np.zeros(0, int), np.zeros(0, int), 10), 3)
    assert np.diff(cut.ptr).max() <= 4 and np.diff(cut.ptr).sum() == 10


@pytest.mark.parametrize("parts", [0, -1, 61])
def test_impossible_numbers_of_parts_are_refused(awkward_graph, parts):
    with pytest.raises(InputError, match=f"into {parts} parts; choose 1 to 60"):
        make_edge_cut(awkward_graph(0), parts)


@pytest.mark.parametrize(
    ("owner", "message"), [([0] * 59, "must be 60 integers"), ([2] * 60, "part 2"), ([-1] * 60, "part -1")]
)
def test_bad_owners_are_refused(awkward_graph, owner, message):
    with pytest.raises(InputError, match=message):
        make_edge_cut(awkward_graph(0), 2, owner=np.array(owner))


def test_a_crash_of_metis_is_an_error_not_a_crash():
    with pytest.raises(RuntimeError, match="(?s)METIS ended with exit code 1: .*xadj"):
        metis._run({}, {"parts": 2, "seed": 0}, "METIS", None)


def test_the_child_dies_with_its_parent(tmp_path):
    """If a partitioning process is killed, its METIS child must end, too."""
    code = (
        "import numpy as np, scipy.sparse as sp\n"
        "from dgl_gt.partition.cuts import metis\n"
        "a = sp.random_array((300000, 300000), density=2e-5, rng=0, dtype='f4').tocsr(); a = (a + a.T).tocsr()\n"
        "a.setdiag(0); a.eliminate_zeros()\n"
        "show = lambda *_: print('running', flush=True)\n"
        "metis.k_way(a.astype(bool), 64, np.ones(300000, int), progress=show)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=os.getcwd())
    assert parent.stdout.readline()
    children = subprocess.run(
        ["ps", "--ppid", str(parent.pid), "-o", "pid="], capture_output=True, text=True
    ).stdout.split()
    assert children
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(100):
        alive = subprocess.run(
            ["ps", "-o", "stat=", "-p", ",".join(children)], capture_output=True, text=True
        ).stdout.split()
        if all(stat.startswith("Z") for stat in alive):
            return
        time.sleep(0.05)
    pytest.fail("METIS outlived its parent")


def test_a_module_of_the_users_does_not_hide_ours(tmp_path, monkeypatch, awkward_graph):
    (tmp_path / "partition.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    assert make_edge_cut(awkward_graph(0), 2).parts == 2


@pytest.mark.parametrize("edges", [1, 3, 40])
def test_clusters_of_nearly_empty_graphs(edges):
    """METIS must not fail in its bisections on a star with thousands of isolated nodes."""
    cut = make_edge_cut(from_edges(np.zeros(edges, int), np.arange(1, edges + 1), 5000), 2)
    assert sorted(cut.order) == list(range(5000))


# ---- nodes without neighbours ----------------------------------------------------------------------------------------


def seen_by_metis(monkeypatch):
    """Return a list that gets the number of nodes that METIS is given at each call in this process."""
    seen, run_metis = [], metis._run_metis

    def noted(xadj, *rest, **options):
        seen.append(len(xadj) - 1)
        return run_metis(xadj, *rest, **options)

    monkeypatch.setattr(metis, "_run_metis", noted)
    return seen


@pytest.mark.parametrize("shares", [None, [0.6, 0.3, 0.1]])
@pytest.mark.parametrize("linked", [0, 2, 300])
def test_nodes_without_neighbours_are_dealt_out_without_metis(monkeypatch, linked, shares):
    draw, seen = np.random.default_rng(0), seen_by_metis(monkeypatch)
    ids = draw.permutation(5000)[:linked]
    graph = symmetrised(from_edges(ids, np.roll(ids, 1), 5000))
    weights = draw.integers(1, 5, 5000)
    arrays = {"xadj": graph.indptr.astype(np.int64), "adjncy": graph.indices.astype(np.int64), "weights": weights}
    job = {"parts": 3, "objective": "cut", "tolerance": 1.03, "seed": 0, "shares": shares}
    part = metis._k_way(arrays, job)
    assert seen == ([300] if linked == 300 else [])
    expected = np.array(shares or [1 / 3] * 3) * weights.sum()
    assert np.bincount(part, weights, 3) == pytest.approx(expected, abs=10)


@pytest.mark.parametrize("alone", [0, 40])
def test_metis_sees_a_graph_with_few_such_nodes_as_it_is(alone):
    """Its cuts then stay as they are."""
    ring = np.arange(400 - alone)
    graph = symmetrised(from_edges(ring, np.roll(ring, 1), 400))
    xadj, adjncy = graph.indptr.astype(np.int64), graph.indices.astype(np.int64)
    rows, same, also = metis._without_isolated(xadj, adjncy)
    assert same is xadj and also is adjncy and rows.tolist() == list(range(400))


# ---- what METIS lacks ------------------------------------------------------------------------------------------------


def test_a_full_disk_of_temporary_files_is_named(awkward_graph, monkeypatch, tmp_path):
    monkeypatch.setattr(metis.tempfile, "gettempdir", lambda: str(tmp_path))
    disk = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(metis.shutil, "disk_usage", lambda _: disk._replace(free=1000))
    with pytest.raises(InputError, match=f"temporary files in {tmp_path}, which has 1000 B free; free space, or set"):
        make_edge_cut(awkward_graph(0), 2)
    monkeypatch.undo()
    monkeypatch.setattr(metis.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(metis.tempfile, "TemporaryFile", lambda: open("/dev/full", "wb"))
    with pytest.raises(InputError, match=f"cannot write temporary files in {tmp_path}: No space left.*set TMPDIR"):
        make_edge_cut(awkward_graph(0), 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 2.0}, "parts is 2.0"),
        ({"parts": 2, "attempts": 1.5}, "attempts is 1.5"),
        ({"parts": 2, "seed": -1}, "seed is -1"),
        ({"parts": 2, "owner": [[0], [1, 0]]}, "owner cannot become a numpy array"),
        ({"parts": 2, "target_weights": [[1, 2]]}, r"target_weights are \[\[1, 2\]\]"),
        ({"parts": 2, "owner": [0, 0, 1, 0], "max_imbalance": 1.1}, "the given owner exceeds the bounds: nodes 1.5"),
    ],
)
def test_arguments_of_wrong_kinds_are_refused_by_name(options, message):
    graph = from_edges([0, 1, 2, 3], [1, 2, 3, 0])
    with pytest.raises(InputError, match=message):
        make_edge_cut(graph, **options)
