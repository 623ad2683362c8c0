"""The method that is chosen for a memory bound, and what is said where none will do."""

import itertools
import os
import re
from dataclasses import replace

import numpy as np
import pytest
from memory_cases import npz, sizes, sizes_of

from dgl_gt.cli.main import main
from dgl_gt.partition import memory_bound
from dgl_gt.partition.errors import InputError
from dgl_gt.partition.memory_bound import METHOD_NAMES, METHODS, choose_method, estimate_needs
from dgl_gt.partition.sources.load import open_source
from dgl_gt.partition.system.units import parse_size

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def test_the_first_method_within_the_bound_is_chosen():
    start = sizes()
    needs = {method: estimate_needs(start, method).memory_bytes for method in METHODS}
    for cut in (None, "vertex", "auto"):
        assert choose_method(start, None, cut) == "metis"
        assert choose_method(start, 1 << 50, cut) == "metis"
        for method, lower in zip(METHODS, (*METHODS[1:], None)):
            assert choose_method(start, needs[method], cut) == method
            if lower:
                assert choose_method(start, needs[method] - 1, cut) == lower
        with pytest.raises(InputError, match="too small: the least that works is about .* \\(streaming\\)"):
            choose_method(start, needs["streaming"] - 1, cut)


def test_an_edge_cut_needs_metis():
    start = sizes()
    need = estimate_needs(start, "metis").memory_bytes
    assert choose_method(start, need, "edge") == "metis" and choose_method(start, None, "edge") == "metis"
    with pytest.raises(InputError) as caught:
        choose_method(start, need - 1, "edge")
    message = str(caught.value)
    assert "(METIS)" in message and "vertex cut" in message and "\n" not in message
    for method in METHODS[1:]:
        assert (
            f"{METHOD_NAMES[method]} needs about {-(-estimate_needs(start, method).memory_bytes // 2**20)} MiB"
            in message
        )


def test_a_graph_in_memory_cannot_be_streamed():
    start = sizes(is_graph=True)
    need = estimate_needs(start, "expansion").memory_bytes
    assert choose_method(start, need, None) == "expansion"
    with pytest.raises(InputError, match="\\(neighbour expansion\\)"):
        choose_method(start, need - 1, None)


def test_streaming_is_not_offered_for_a_graph_in_memory():
    with pytest.raises(InputError) as caught:
        choose_method(sizes(is_graph=True), 1, "edge")
    assert "streaming" not in str(caught.value)


LEAST_MEMORY = re.compile(r"the least that works is about ([\d.]+ \w+) ")


@pytest.mark.parametrize("cut", [None, "edge", "vertex"])
@pytest.mark.parametrize("is_graph", [False, True])
def test_the_least_that_the_message_names_works(cut, is_graph):
    for nodes, edges in itertools.product((10**3, 12_345, 10**6, 10**8), (10**4, 54_321, 10**7, 3 * 10**9)):
        start = sizes(nodes=nodes, edges=edges, undirected_edges=edges // 2, is_graph=is_graph)
        with pytest.raises(InputError) as caught:
            choose_method(start, 1, cut)
        least = parse_size(LEAST_MEMORY.search(str(caught.value)).group(1))
        chosen = choose_method(start, least, cut)
        assert estimate_needs(start, chosen).memory_bytes <= least <= 1.06 * estimate_needs(start, chosen).memory_bytes


def test_the_least_that_a_real_message_names_works(capsys):
    npz()
    assert main(["partition", "graph.npz", "--parts", "2", "--out", "out", "--memory", "1MB"]) == 2
    least = LEAST_MEMORY.search(capsys.readouterr().err).group(1)
    assert main(["partition", "graph.npz", "--parts", "2", "--out", "out", "--memory", least]) == 0
    assert os.path.exists("out/manifest.json")


@pytest.mark.parametrize("cut", [None, "edge", "vertex"])
def test_more_parts_are_advised_where_they_help(cut):
    for start in (sizes(), sizes(node_bytes=0, edge_bytes=0), sizes(parts=1), sizes(parts=64)):
        with pytest.raises(InputError) as caught:
            choose_method(start, 1, cut)

        def least(parts, start=start):
            allowed = METHODS[:1] if cut == "edge" else METHODS
            return min(estimate_needs(replace(start, parts=parts), method).memory_bytes for method in allowed)

        helps = any(least(start.parts * more) < 0.95 * least(start.parts) for more in (2, 4, 16))
        assert helps or "make more parts" not in str(caught.value)


def test_what_reading_took_counts():
    found = sizes(nodes=1000, edges=1000, undirected_edges=500)
    assert choose_method(found, 400 << 20, None) == choose_method(found, 400 << 20, None, 300 << 20) == "metis"
    with pytest.raises(InputError, match=r"too small: the least that works is about 400 MiB"):
        choose_method(found, 390 << 20, None, 320 << 20)


def test_a_number_without_a_unit_is_asked_about():
    with pytest.raises(InputError, match=r"a memory bound of 4 B is too small \(did you mean 4GiB\?\): the least"):
        choose_method(sizes(), 4, None)


def test_a_cut_whose_largest_part_is_too_large_to_write_is_refused(monkeypatch):
    monkeypatch.setattr(memory_bound, "_INTERPRETER_BYTES", 0)
    x = np.ones((2000, 64), np.float32)
    source = np.repeat([0], 4000), np.arange(4000) % 1999 + 1
    npz("hub.npz", nodes=2000, edge_index=np.stack(source), x=x)
    found = sizes_of(open_source("hub.npz"), 40)
    bound = estimate_needs(found, "streaming").memory_bytes
    monkeypatch.setattr(memory_bound, "_SLICE_BYTES", 0)
    memory_bound.check_memory_bound(found, "streaming", bound, 2.0, 1.1)
    with pytest.raises(
        InputError,
        match="with the most rows holds 90.00 times an even share of the nodes, .* 1.10 times its share of the edges: make more parts, or raise",
    ):
        memory_bound.check_memory_bound(found, "streaming", bound // 40, 90.0, 1.1)
