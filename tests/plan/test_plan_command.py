"""``dgl-gt plan`` over shards, as a user runs it."""

import re

import pytest
from selector_cases import SMALL, every_way, planned, refused, write_profile

from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.partition.shards.manifest import read_manifest
from dgl_gt.partition.system.units import parse_size
from dgl_gt.plan import read_profile, tracer_of
from dgl_gt.train import read_config

CHOICE = {
    "cut",
    "strategy",
    "depth",
    "activation_checkpoint",
    "directory",
    "predicted_seconds",
    "predicted_sent_bytes",
    "predicted_peak_bytes",
    "predicted_memory_bytes",
    "predicted_file_bytes",
    "ranks",
    "parts",
    "spilled",
    "reason",
}
CANDIDATE = {
    "cut",
    "strategy",
    "depth",
    "activation_checkpoint",
    "directory",
    "seconds",
    "seconds_by_term",
    "sent_bytes",
    "peak_bytes",
    "peak_bytes_by_term",
    "memory_bytes",
    "refused",
    "memory_ratio",
    "ranks",
    "parts",
    "spilled",
    "file_bytes",
}
SIZES = {"layers": 2, "hidden": 16, "heads": 4, "ffn": 2, "features": 12, "classes": 10}
STEP = read_config(layers=2, hidden=16, heads=4), 12, 10


def test_the_json_that_is_promised(here, both, tmp_path):
    profile = write_profile(tmp_path / "two.yaml")
    result = planned(here("plan", *both, *SMALL, "--profile", profile, "--json"))
    assert set(result) == {"choice", "candidates", "profile", "model", "ranks", "one_rank_seconds"}
    assert set(result["choice"]) == CHOICE and all(set(each) == CANDIDATE for each in result["candidates"])
    assert (result["ranks"], result["profile"]) == (2, {"name": str(profile), "kind": "measured"})
    assert SIZES.items() <= result["model"].items()
    choice, first = result["choice"], result["candidates"][0]
    for key in ("cut", "strategy", "depth", "activation_checkpoint", "directory", "ranks", "parts", "spilled"):
        assert choice[key] == first[key]
    for key in ("seconds", "sent_bytes", "peak_bytes", "memory_bytes", "file_bytes"):
        assert choice[f"predicted_{key}"] == first[key]
    terms = {"products_s", "rows_s", "attention_s", "exchange_s", "hidden_s", "gradients_s", "files_s", "pages_s"}
    assert set(first["seconds_by_term"]) == terms
    assert set(first["peak_bytes_by_term"]) == {"kept", "made in the step"}
    assert {each["directory"] for each in result["candidates"]} == set(map(str, both))


def test_the_pick_is_the_quickest_and_changes_with_memory(here, both, tmp_path):
    """Against the traces of all ways; refused below the least, in one line that names it."""
    path = write_profile(tmp_path / "two.yaml")
    cuts = [(str(folder), read_figures(read_manifest(folder))) for folder in both]
    ways = every_way(cuts, tracer_of(*STEP), read_profile(path))
    bounds = sorted({figures[2] for figures in ways.values()})
    picks = set()
    for bound in bounds:
        options = ["--profile", path, "--rank-memory", bound, "--json"]
        result = planned(here("plan", *both, *SMALL, *options))
        choice = result["choice"]
        fitting = [figures for figures in ways.values() if figures[2] <= bound]
        assert choice["predicted_seconds"] == min(figures[0] for figures in fitting)
        assert choice["predicted_memory_bytes"] <= bound
        refusals = [each["refused"] for each in result["candidates"] if (each["memory_bytes"] or 0) > bound]
        assert all("on its largest rank" in each for each in refusals)
        picks.add((choice["cut"], choice["strategy"], choice["depth"], choice["activation_checkpoint"]))
    assert len(picks) >= 3
    below = planned(here("plan", *both, *SMALL, "--profile", path, "--rank-memory", bounds[0] - 1, "--json"))["choice"]
    assert below["spilled"] and below["predicted_memory_bytes"] < bounds[0]
    least = below["predicted_memory_bytes"]
    done = here("plan", *both, *SMALL, "--profile", path, "--rank-memory", least - 1)
    message = refused(done, "nothing fits", "into more parts", lines=None)
    named = re.search(r"--rank-memory (\S+)\)", message)[1]
    assert parse_size(named) >= least
    planned(here("plan", *both, *SMALL, "--profile", path, "--rank-memory", named, "--json"))
    refused(
        here("plan", *both, *SMALL, "--profile", path, "--rank-memory", least - 1, "--json"),
        "nothing fits",
        lines=None,
    )


def test_the_table(here, both, tmp_path):
    """Every candidate that does not fit is there with its reason, then the choice and whose figures these are."""
    path = write_profile(tmp_path / "two.yaml")
    options = [*SMALL[:2], "--heads", 1, "--profile", path]
    everything = planned(here("plan", *both, *options, "--json"))["candidates"]
    options += ["--rank-memory", sorted(each["memory_bytes"] for each in everything if not each["refused"])[3]]
    everything = planned(here("plan", *both, *options, "--json"))["candidates"]
    done = here("plan", *both, *options)
    assert done.returncode == 0 and done.stderr.startswith("tracing steps") and done.stderr.count("\n") == 1
    lines = done.stdout.splitlines()
    header = lines[0].split("  ")
    assert [word.strip() for word in header if word][:5] == [
        "cut",
        "strategy",
        "depth",
        "checkpoint",
        "s / step",
    ]
    rows = lines[2 : lines.index("")]
    assert len(rows) == len(everything)
    shown = sum("on its largest rank" in row for row in rows)
    assert 0 < shown == sum("on its largest rank" in (each["refused"] or "") for each in everything)
    assert sum("heads is 1, which 2 ranks cannot share evenly" in row for row in rows) == 1
    reason = next(line for line in lines if line.startswith("chosen: "))
    assert re.search(r"a step is predicted to take \S+ s \(products \d+%, rows \d+%, edges \d+%, exchange", reason)
    assert re.search(
        r"; \w+ (of depth 2 )?on the (edge|vertex) cut(, activation checkpoint \w+)? takes \d+\.\d% longer", reason
    )
    assert lines[-1] == "ranks and links as measured"


@pytest.mark.parametrize(
    ("options", "words", "kind"),
    [
        ([], "no profile or preset given", "default"),
        (["--preset", "8xH100"], "from datasheets", "datasheet"),
        (["--preset", "cpu-10GbE"], "from datasheets", "datasheet"),
    ],
)
def test_whose_figures_these_are_is_said(here, both, options, words, kind):
    done = here("plan", *both, *options)
    assert done.returncode == 0 and words in done.stdout.splitlines()[-1]
    result = planned(here("plan", *both, *options, "--json"))
    assert result["profile"] == {"name": (options or ["", "default"])[1], "kind": kind}


def test_max_depth(here, both):
    result = planned(here("plan", *both, *SMALL, "--max-depth", 1, "--json"))
    assert {each["depth"] for each in result["candidates"]} == {1}


def test_the_model_of_a_config_file_and_options_over_it(here, both, tmp_path):
    (tmp_path / "config.yaml").write_text("model: {hidden: 32, heads: 4, layers: 1, ffn: 3}\nepochs: 9\n")
    model = planned(here("plan", *both, "--config", tmp_path / "config.yaml", "--layers", 3, "--json"))["model"]
    found = {key: model[key] for key in ("layers", "hidden", "heads", "ffn", "features")}
    assert found == {"layers": 3, "hidden": 32, "heads": 4, "ffn": 3, "features": 12}
    model = planned(here("plan", *both, "--json"))["model"]
    assert {key: model[key] for key in ("layers", "hidden", "heads", "ffn")} == {
        "layers": 2,
        "hidden": 64,
        "heads": 8,
        "ffn": 2,
    }
