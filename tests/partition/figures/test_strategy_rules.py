"""Which strategies a partition can have, and figures that lack a count."""

import dataclasses

import pytest
from hand_made_figures import edge_figures, vertex_figures

from dgl_gt.partition.figures.figures import Figures
from dgl_gt.partition.figures.strategies import check_strategy, default_strategy, strategy_of

EDGE = edge_figures([4, 3, 2, 5], [[3, 3]] * 4, [[0, 0]] * 4, [[0, 0]] * 4)
VERTEX = vertex_figures(*([count] * 4 for count in (4, 9, 3, 2, 1, 2)))


def test_defaults():
    assert default_strategy(EDGE).name == "halo_h" and default_strategy(VERTEX).name == "mirror"


@pytest.mark.parametrize(
    ("figures", "strategy", "message"),
    [
        (EDGE, "mirror", "strategy mirror does not run on the partition"),
        (EDGE, "local", "strategy local runs on one part, and the partition has 4; use halo"),
        (EDGE, "halos", "strategy is 'halos'"),
        (EDGE, "halo", "strategy is 'halo'"),
        *(
            (VERTEX, name, f"strategy {name} does not run on the partition, which holds a vertex cut; use mirror")
            for name in ("local", "halo_h", "gather", "ring")
        ),
    ],
)
def test_strategies_that_are_refused(figures, strategy, message):
    with pytest.raises(ValueError, match=message):
        check_strategy(figures, strategy_of(strategy), 1)


@pytest.mark.parametrize(
    ("figures", "strategy", "depth"),
    [
        (EDGE, "halo_h", 0),
        (EDGE, "halo_h", -1),
        (EDGE, "halo_h", 3),
        (EDGE, "halo_kv", 2),
        (EDGE, "gather", 2),
        (EDGE, "ring", 0),
        (VERTEX, "mirror", 2),
        (VERTEX, "mirror", 0),
        (EDGE, "halo_h", True),
        (EDGE, "halo_h", 1.0),
    ],
)
def test_depths_that_are_refused(figures, strategy, depth):
    with pytest.raises(ValueError, match=f"depth is {depth}"):
        check_strategy(figures, strategy_of(strategy), depth)


OPTIONAL = {"schema", "typed", "pieces", "bounds"}  # which most figures do without


@pytest.mark.parametrize("name", [each.name for each in dataclasses.fields(Figures) if each.name not in OPTIONAL])
def test_a_missing_count_is_an_error(name):
    values = vars(EDGE)
    with pytest.raises(TypeError, match=name):
        Figures(**{key: value for key, value in values.items() if key != name})
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(EDGE, name, values[name])
