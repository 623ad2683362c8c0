"""Cuts whose largest part must fit into the memory of a training rank."""

import os
import re

import msgspec
import numpy as np
import pytest
from memory_cases import npz, run

from dgl_gt.partition import default_costs, partition
from dgl_gt.partition.cuts.edge_cut import EdgeCut
from dgl_gt.partition.cuts.vertex_cut import make_vertex_cut
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.shards.layout import Layout, check_memory, choose_cut
from dgl_gt.partition.system.units import format_bytes

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def test_the_choice_is_among_those_that_fit(awkward_graph):
    graph = awkward_graph(0)
    shares, order = np.full(2, 0.5), np.arange(graph.num_nodes, dtype=np.int32)
    edge = Layout(graph, EdgeCut(order, np.array([0, 30, 60]), shares))
    layouts = [Layout(graph, make_vertex_cut(graph, 2, by_metis=False)), edge]
    seen = set()
    default = default_costs()
    slow = {cut: msgspec.structs.replace(default.of(cut), calls=1e6) for cut in ("edge", "vertex")}
    for costs in (default, *(msgspec.structs.replace(default, **{cut: each}) for cut, each in slow.items())):
        free = choose_cut(layouts, costs)
        needs = {each["cut"]: each["rank_memory_bytes"] for each in free["candidates"]}
        seconds = {each["cut"]: each["predicted_seconds"] for each in free["candidates"]}
        assert free["cut"] == min(seconds, key=seconds.get)
        (smaller, less), (larger, more) = sorted(needs.items(), key=lambda item: item[1])
        seen.add(free["cut"] == larger)
        assert less < more
        assert choose_cut(layouts, costs, more)["cut"] == free["cut"]
        for bound in (less, more - 1):
            tight = choose_cut(layouts, costs, bound)
            assert tight["cut"] == smaller
            assert (
                f"the {larger} cut does not fit: its largest part needs about {format_bytes(more)}" in tight["reason"]
            )
        assert choose_cut(layouts, costs, less - 1)["cut"] == smaller
    assert True in seen, "a bound overruled the prediction"
    for layout in layouts:
        figures = layout.figures
        need = needs[figures.cut]
        check_memory(figures, costs, need, is_only=True)
        check_memory(figures, costs, None, is_only=True)
        for is_only, found in ((True, f"the {figures.cut} cut does not fit"), (False, "no cut fits")):
            with pytest.raises(InputError, match=f"{found} .* cut needs about {re.escape(format_bytes(need))}"):
                check_memory(figures, costs, need - 1, is_only=is_only)


def test_rank_memory(capsys):
    npz(edges=3000, x=np.ones((300, 20), np.float32))
    candidates = partition("graph.npz", 2, "probe", cut="auto")["choice"]["candidates"]
    needs = {each["cut"]: each["rank_memory_bytes"] for each in candidates}
    smaller, less = min(needs.items(), key=lambda item: item[1])
    for cut, need in (("vertex", needs["vertex"]), ("auto", less)):
        asked = ["partition", "graph.npz", "--parts", 2, "--cut", cut]
        code, made, err = run(capsys, *asked, "--out", "out", "--rank-memory", need - 1)
        assert (code, made) == (2, None) and sorted(os.listdir()) == ["graph.npz", "probe"]
        named = smaller if cut == "auto" else cut
        message = err.splitlines()[-1]
        found = "no cut fits" if cut == "auto" else f"the {cut} cut does not fit"
        assert f"{found} ranks of" in message and f"the {named} cut needs about {format_bytes(need)}" in message
        assert ("--cut auto" in message) == (cut != "auto")
    code, made, _ = run(capsys, *asked, "--out", "out", "--rank-memory", less)
    assert code == 0 and made["cut"] == made["choice"]["cut"] == smaller
