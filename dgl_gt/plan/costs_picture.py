"""The picture of a step's costs: a bar for each layer, by kind of work, predicted above measured."""

from __future__ import annotations

from dgl_gt.partition.system.optional_packages import import_optional

_COLOURS = ("tab:blue", "tab:cyan", "tab:green", "tab:orange", "tab:red", "lightgrey")
_HEIGHT = 0.36  # of a bar, where two of a layer are 0.4 apart


def draw(layers: list, titles: dict[str, str]):
    """Draw a matplotlib figure of costs by layer, see :class:`dgl_gt.plan.step_costs.LayerCosts`.

    ``titles`` are the kinds of work, and what they are called.
    """
    pictures = import_optional("matplotlib.figure", "a picture of costs", "pip install matplotlib")
    figure = pictures.Figure(figsize=(9, 1.6 + 0.5 * len(layers)), layout="constrained")
    axes, is_measured = figure.subplots(), any(each.measured is not None for each in layers)
    columns = [(-0.2 * is_measured, [each.predicted for each in layers])]
    if is_measured:
        columns.append((0.2, [each.measured or {} for each in layers]))
    for offset, of_layers in columns:
        places, ends = [row + offset for row in range(len(layers))], [0.0] * len(layers)
        for (name, title), colour in zip(titles.items(), _COLOURS):
            widths = [each.get(name, 0.0) for each in of_layers]
            is_new = any(widths) and title not in axes.get_legend_handles_labels()[1]
            axes.barh(places, widths, _HEIGHT, left=ends, color=colour, label=title if is_new else None)
            ends = [end + width for end, width in zip(ends, widths)]
    axes.set_yticks(range(len(layers)), [each.layer for each in layers])
    axes.invert_yaxis()
    axes.set(xlabel="seconds per step" + (" (upper bar: predicted, lower bar: measured)" if is_measured else ""))
    axes.legend(fontsize=8)
    return figure
