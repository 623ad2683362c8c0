"""Linear costs that tests write by hand."""

from msgspec.structs import replace

from dgl_gt.partition.figures.costs import Costs, CutCosts, PerCount, default_costs


def hand_made_costs(**of_cuts) -> Costs:
    """Costs of rows of 16 bytes, the same on both cuts but for what ``of_cuts`` changes."""
    cut = CutCosts(
        strategy="halo_h",
        compute_s=PerCount(rank=1e-3, owned=4e-6, copies=1e-6, edges=2e-7, sent=1e-7, returned=1e-6, returns=1e-6),
        sent_bytes=PerCount(copies=16.0, sent=16.0, returned=24.0, returns=24.0),
        byte_s=8e-10,
        calls=4.0,
        call_s=1e-4,
        sum_s=0.0,
        tensor_bytes=PerCount(rank=5000.0, owned=300.0, copies=60.0, edges=30.0),
    )
    cut = replace(cut, **of_cuts)
    return Costs(model={"layers": 2}, profile="by hand", row_s=1e-6, edge=cut, vertex=replace(cut, strategy="mirror"))


def on_links(byte_s: float) -> Costs:
    """The default costs on links that take so many seconds per byte."""
    costs = default_costs()
    return replace(costs, edge=replace(costs.edge, byte_s=byte_s), vertex=replace(costs.vertex, byte_s=byte_s))
