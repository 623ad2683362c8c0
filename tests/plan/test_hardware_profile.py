"""Hardware profiles: as measured, as files, as presets; and every file that is none."""

import copy
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from ranks import run_ranks
from selector_cases import half_speed, profile_values, write_profile

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.figures.costs import read_costs
from dgl_gt.partition.figures.profile import PRESETS, read_profile
from dgl_gt.partition.system import memory

FILES = Path(__file__).parents[2] / "partition" / "figures" / "presets"


# ---- presets ------------------------------------------------------------------------------------------------------


def test_the_promised_presets_are_there():
    assert set(PRESETS) == {"8xA100", "8xH100", "4hosts-100GbE", "cpu-10GbE", "default"}


@pytest.mark.parametrize("ranks", [1, 2, 8, 16])
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_give_positive_figures(preset, ranks):
    profile = read_profile(preset=preset)
    check_positive(profile, ranks)
    assert profile.latency_s > 0 and profile.reduce_bytes_per_s > 0 and 0 <= profile.overlap <= 1


def check_positive(profile, ranks):
    """Each figure is there for each rank."""
    for rates in (profile.product_flops_per_s(64, ranks), profile.edge_seconds(8, 64, np.full(ranks, 1e6), 0.5)):
        assert rates.shape == (ranks,) and np.isfinite(rates).all() and (rates > 0).all()
    for figure in (profile.stream_bytes_per_s, profile.simple_bytes_per_s, profile.operation_s):
        assert (np.broadcast_to(figure, ranks) > 0).all()
    assert profile.links(ranks).shape == (ranks, ranks) and (profile.links(ranks) > 0).all()


@pytest.mark.parametrize("preset", sorted(set(PRESETS) - {"default"}))
def test_datasheet_values_are_marked(preset):
    assert read_profile(preset=preset).kind == "datasheet"
    assert "Datasheet values, not measured" in (FILES / f"{preset}.yaml").read_text().splitlines()[0]


def test_without_a_profile_the_default_is_taken():
    profile = read_profile()
    assert (profile.name, profile.kind, profile.ranks) == ("default", "default", None)


@pytest.mark.parametrize(("ranks", "hosts"), [(2, None), (8, None), (12, None), (16, 8), (32, 8)])
def test_hosts_of_eight(ranks, hosts):
    """Twelve ranks do not fill two of them."""
    assert read_profile(preset="8xH100").ranks_per_host(ranks) == hosts


def test_hosts_are_found_by_their_links(tmp_path):
    """The slowest link within must beat the fastest between; one that does not leaves no hosts."""
    links = np.full((8, 8), 5.0) + 45 * np.kron(np.eye(4), np.ones((2, 2))) + 5 * np.kron(np.eye(2), np.ones((4, 4)))
    for link, bytes_per_s, hosts in (((4, 5), 6.0, 4), ((0, 3), 5.0, 2), ((6, 7), 5.0, None)):
        changed = links.copy()
        changed[link] = bytes_per_s
        path = write_profile(tmp_path / "p.yaml", profile_values(8, link_bytes_per_s=changed.tolist()))
        assert read_profile(path).ranks_per_host(8) == hosts


def test_links_between_hosts_are_slower_than_within():
    link = read_profile(preset="8xH100").links(16)
    host = np.arange(16) // 8
    is_within = host[:, None] == host[None]
    assert link[is_within].min() > link[~is_within].max()


def test_an_unknown_preset_lists_all():
    with pytest.raises(InputError) as stopped:
        read_profile(preset="9xB200")
    assert "9xB200" in str(stopped.value) and all(name in str(stopped.value) for name in PRESETS)


def test_a_profile_and_a_preset_are_one_too_many(tmp_path):
    with pytest.raises(InputError, match="give one"):
        read_profile(write_profile(tmp_path / "two.yaml"), "8xH100")


# ---- files --------------------------------------------------------------------------------------------------------

GIVEN = {
    "one rank": profile_values(1),
    "two ranks": profile_values(2, latency_s=0.0, link_bytes_per_s=[[1e12, 3e8], [2e8, 1e12]]),
    "three uneven ranks": half_speed(3),
    "any number": profile_values(None, kind="datasheet"),
}


@pytest.mark.parametrize("values", GIVEN.values(), ids=GIVEN)
def test_a_profile_is_read_back_as_it_was_written(tmp_path, values):
    first = read_profile(write_profile(tmp_path / "first.yaml", values))
    second = read_profile(write_profile(tmp_path / "second.yaml", first.as_dict()))
    assert first.as_dict() == second.as_dict()
    assert (second.kind, second.ranks) == (values["kind"], values["ranks"])


def test_speeds_are_what_the_file_says(tmp_path):
    """Products by the logarithm of the width between those measured, and the nearest beyond; edges by H and C."""
    values = profile_values(2, link_bytes_per_s=[[1e12, 3e8], [2e8, 1e12]])
    values["products"] = {32: [2e10, 4e10], 128: [6e10, 8e10]}
    profile = read_profile(write_profile(tmp_path / "two.yaml", values))
    for width, rates in ((16, [2e10, 4e10]), (32, [2e10, 4e10]), (64, [4e10, 6e10]), (512, [6e10, 8e10])):
        np.testing.assert_allclose(profile.product_flops_per_s(width, 2), rates)
    near, far = (profile.edge_seconds(4, 64, np.full(2, 1e6), share) for share in (1.0, 0.0))
    np.testing.assert_allclose(near, 1e-9 + 4 * 1e-10 + 64 * 1e-10)
    np.testing.assert_allclose(far, 1e-9 + 4 * 1e-10 + 64 * 2e-10)
    np.testing.assert_allclose(profile.edge_seconds(4, 64, np.full(2, 1e6), np.array([1.0, 0.0])), [near[0], far[0]])
    np.testing.assert_allclose(profile.edge_seconds(4, 64, np.full(2, 1e6), 1.0, itemsize=2), near / 2)
    np.testing.assert_allclose(profile.product_flops_per_s(32, 2, itemsize=2), [4e10, 8e10])
    assert profile.links(2).tolist() == [[1e12, 3e8], [2e8, 1e12]]


def test_far_edges_cost_by_what_the_rank_reads(tmp_path):
    """Between the bytes that were measured by the logarithm."""
    values = profile_values(3)
    values["attention"] |= {"edge_s": 0.0, "head_s": 0.0}
    values["attention"]["far_column_s"] = {1024: [1e-10, 1e-10, 3e-10], 16384: [3e-10, 3e-10, 3e-10]}
    profile = read_profile(write_profile(tmp_path / "three.yaml", values))
    kib = 1024
    for read, seconds in (
        ([kib / 4, kib, 4 * kib], [1, 1, 3]),
        ([4 * kib, 16 * kib, np.inf], [2, 3, 3]),
        ([0] * 3, [1, 1, 3]),
    ):
        found = profile.edge_seconds(4, 32, np.array(read, float), 0.0)
        np.testing.assert_allclose(found, 32e-10 * np.array(seconds))


def test_a_profile_of_other_ranks_is_refused(tmp_path):
    profile = read_profile(write_profile(tmp_path / "two.yaml"))
    with pytest.raises(InputError, match="is for 2 ranks, and 4 ranks will train") as stopped:
        profile.check_ranks(4)
    assert "calibrate --nproc 4" in str(stopped.value) and all(name in str(stopped.value) for name in PRESETS)


def changed(*path, to):
    """A change to a profile: what lies at a path of keys, or nothing where ``to`` is None."""

    def change(values):
        *above, last = path
        for key in above:
            values = values[key]
        if to is None:
            del values[last]
        else:
            values[last] = to

    return change


NUMBERS = ("memory_bytes", "process_bytes", "stream_bytes_per_s", "simple_bytes_per_s", "operation_s")
SCALARS = ("latency_s", "overlap", "reduce_bytes_per_s")
EDGES = ("edge_s", "head_s", "row_column_s", "near_column_s")
MAY_BE_ZERO = {"process_bytes", "operation_s", "latency_s", "overlap", "edge_s", "head_s", "row_column_s"}
PLACES = [(key,) for key in (*NUMBERS, *SCALARS)] + [("attention", key) for key in EDGES]
TOP = ("ranks", "kind", "products", "attention", "link_bytes_per_s")

BAD = [(f"{key} missing", changed(key, to=None), f"has no {key}") for key in TOP]
for place in PLACES:
    key = place[-1]
    BAD.append((f"{key} missing", changed(*place, to=None), f"has no {'.'.join(place)}"))
    for word, value in (("negative", -1.0), ("nan", np.nan), ("inf", np.inf), ("text", "fast"), ("a dict", {"a": 1})):
        BAD.append((f"{key} {word}", changed(*place, to=value), f"{'.'.join(place)} is {value!r}"))
    if key not in MAY_BE_ZERO:
        BAD.append((f"{key} zero", changed(*place, to=0), f"{'.'.join(place)} is 0"))
    if key not in SCALARS:
        BAD.append((f"{key} of 3 ranks", changed(*place, to=[1.0] * 3), "has 3 figures for 2 ranks"))
        BAD.append((f"{key} of none", changed(*place, to=[]), "has 0 figures for 2 ranks"))
        BAD.append((f"{key} nested", changed(*place, to=[[1.0, 2.0], [3.0, 4.0]]), f"{'.'.join(place)} is [["))
        BAD.append((f"{key} of one rank", changed(*place, to=[1.0, -2.0]), "or one for each rank"))
    else:
        BAD.append((f"{key} a list", changed(*place, to=[0.5, 0.7]), "one number"))
TABLES = {"products": ("products", 128), "far_column_s": ("attention", "far_column_s", 1000)}
for key, place in TABLES.items():
    for name, value in (("zero", 0.0), ("negative", [1e9, -1.0]), ("text", "quick")):
        BAD.append((f"{key} {name}", changed(*place, to=value), f"{place[-1]}: {value!r}}}; it must be a map from"))
    BAD.append((f"{key} of 3 ranks", changed(*place, to=[1e9] * 3), f"{key} of {place[-1]} has 3 figures for 2 ranks"))
    for name, value in (("a number", 1e9), ("empty", {}), ("by text", {"wide": 1e9}), ("of 0", {0: 1e9})):
        BAD.append((f"{key} {name}", changed(*place[:-1], to=value), f"{key} is {value!r}; it must be a map from"))
BAD.append(("far_column_s missing", changed("attention", "far_column_s", to=None), "has no attention.far_column_s"))
for name, value in (
    ("of 3 ranks", [[1e9] * 3] * 3),
    ("one row", [[1e9, 1e9]]),
    ("ragged", [[1e9, 1e9], [1e9]]),
):
    BAD.append((f"link {name}", changed("link_bytes_per_s", to=value), "must be 2 lists of as many positive numbers"))
for name, value in (
    ("flat", [1e9, 1e9]),
    ("a number", 1e9),
    ("text", "fast"),
    ("zero", [[1e9, 0.0], [1e9, 1e9]]),
    ("nan", [[1e9, np.nan], [1e9, 1e9]]),
):
    message = f"link_bytes_per_s is {value!r}; it must be one list of positive numbers for each rank, or"
    BAD.append((f"link {name}", changed("link_bytes_per_s", to=value), message))
HOSTS = {"within": 1e9, "between": 1e8, "ranks_per_host": 2}
for key in HOSTS:
    for name, value in (("zero", 0), ("negative", -1.0), ("nan", np.nan), ("text", "fast"), ("true", True)):
        hosts = {**HOSTS, key: value}
        BAD.append((f"link {key} {name}", changed("link_bytes_per_s", to=hosts), f"link_bytes_per_s.{key} is"))
    hosts = {other: value for other, value in HOSTS.items() if other != key}
    BAD.append((f"link {key} missing", changed("link_bytes_per_s", to=hosts), f"has no link_bytes_per_s.{key}"))
for value in (0.5, 1.5):
    hosts = {**HOSTS, "ranks_per_host": value}
    BAD.append((f"{value} ranks a host", changed("link_bytes_per_s", to=hosts), "ranks_per_host is"))
for value in (0, -2, 1.5, "two", True, [2]):
    BAD.append((f"ranks {value}", changed("ranks", to=value), "ranks is"))
BAD += [
    ("overlap beyond 1", changed("overlap", to=1.5), "overlap is 1.5; it must be one number between 0 and 1"),
    ("another format", changed("format", to="dgl-gt profile 9"), "is not a hardware profile"),
    ("no format", changed("format", to=None), "is not a hardware profile"),
    ("another kind", changed("kind", to="guess"), "kind is 'guess'; it must be one of measured, datasheet, default"),
    ("attention a number", changed("attention", to=1e-9), "attention is 1e-09; it must be a map with edge_s, head_s"),
    (
        "an unknown key",
        changed("overlapp", to=0.5),
        "unknown key 'overlapp'; the most similar that are allowed are overlap",
    ),
    ("a name", changed("name", to="mine"), "unknown key 'name'"),
    ("a key like a place", changed("attention", " - at `$.kind`", to=1), "it must be a map with edge_s, head_s"),
    ("a kind like a place", changed("kind", to=" - at `$.name`"), "kind is ' - at `$.name`'; it must be one of"),
    ("an unknown key of attention", changed("attention", "edges", to=1e-9), "it must be a map with edge_s, head_s"),
    (
        "an unknown key of hosts",
        changed("link_bytes_per_s", to=HOSTS | {"hosts": 2}),
        "or within, between and ranks_per",
    ),
]


@pytest.mark.parametrize(("change", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_profile_is_refused_by_name(tmp_path, change, message):
    values = copy.deepcopy(profile_values())
    change(values)
    with pytest.raises(InputError) as stopped:
        read_profile(write_profile(tmp_path / "bad.yaml", values))
    assert message in str(stopped.value) and "bad.yaml" in str(stopped.value)
    assert "\n" not in str(stopped.value)


def test_figures_of_ranks_need_their_number(tmp_path):
    """Where ranks are any number, each figure is one."""
    values = profile_values(None, memory_bytes=[1e9, 2e9])
    with pytest.raises(InputError, match="memory_bytes has 2 figures"):
        read_profile(write_profile(tmp_path / "any.yaml", values))
    values = profile_values(None, link_bytes_per_s=[[1e9]])
    with pytest.raises(InputError, match="within, between and ranks_per_host"):
        read_profile(write_profile(tmp_path / "any.yaml", values))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- 1\n- 2\n", "must hold keys and values"),
        (b"", "is not a hardware profile"),
        (b"format: [", "is not valid YAML"),
        (b"format: !!python/object:os.system {}", "is not valid YAML"),
        (b"\xff\xfe\x00", "not a text file"),
    ],
)
def test_files_that_are_no_profiles(tmp_path, content, message):
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as stopped:
        read_profile(path)
    assert message in str(stopped.value) and "\n" not in str(stopped.value)


def test_files_that_are_not_there(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(InputError, match="no such file|is a directory"):
            read_profile(path)


# ---- unequal ranks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_rank_of_half_the_speed_takes_half_the_share(tmp_path, slow):
    weights = read_profile(write_profile(tmp_path / "uneven.yaml", half_speed(3, slow))).target_weights()
    expected = [0.2 if rank == slow else 0.4 for rank in range(3)]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_ranks_that_are_alike_take_as_much_each(tmp_path):
    profile = read_profile(write_profile(tmp_path / "even.yaml", profile_values(4)))
    np.testing.assert_allclose(profile.target_weights(), [0.25] * 4)


def test_a_slow_link_alone_changes_no_share(tmp_path):
    values = profile_values(2, link_bytes_per_s=[[1e12, 1e6], [1e9, 1e12]])
    np.testing.assert_allclose(read_profile(write_profile(tmp_path / "p.yaml", values)).target_weights(), 0.5)


# ---- measured -----------------------------------------------------------------------------------------------------


def calibrated(rank, out):
    """``dgl-gt calibrate`` on this rank, with next to no work: what it prints."""
    from dgl_gt.cli.main import _calibrate_rank
    from dgl_gt.plan import measure

    measure._ROWS, measure._EDGES, measure._FAR_ROWS = 300, 3600, (200, 900)
    measure._SHAPES, measure._WIDTHS = ((8, 4), (2, 16), (1, 8)), (16, 128)
    measure._MESSAGE_BYTES, measure._MAX_EXCHANGE_BYTES = (2**10, 2**12, 2**16), 2**20
    os.environ["XDG_CACHE_HOME"] = str(out.parent)
    return _calibrate_rank(SimpleNamespace(timeout=None, force=False, quick=True, spill=str(out.parent.parent)), out)


def test_attention_is_fitted_to_what_was_measured(monkeypatch):
    """Seconds made from known figures give those figures back, one for each of edge, head, row and locality."""
    from dgl_gt.comm.group import Comm
    from dgl_gt.plan import measure

    monkeypatch.setattr(measure, "_EDGES", 3600)
    monkeypatch.setattr(measure, "_ROWS", 300)
    monkeypatch.setattr(measure, "_FAR_ROWS", (200, 900))
    edge, head, row, columns = 3e-8, 2e-9, 5e-9, (1e-9, 1.5e-9, 4e-9)
    kinds = iter([0] * 8 + [1] * 4 + [2] * 4)  # two graphs of near edges, two of far

    def edge_seconds(comm, graph, heads, head_dim):
        width = heads * head_dim
        of_edge = edge + heads * head + width * columns[next(kinds)]
        return of_edge + graph.num_src * width * row / graph.num_edges

    monkeypatch.setattr(measure, "_edge_seconds", edge_seconds)
    found = measure._attention(Comm())
    expected = {"edge_s": edge, "head_s": head, "row_column_s": row, "near_column_s": columns[0]}
    expected |= dict(zip(measure._far_keys(), columns[1:]))
    assert found == pytest.approx(expected, rel=1e-6) and next(kinds, None) is None


def test_ranks_share_what_the_control_group_leaves(monkeypatch):
    """Not what the whole machine has."""
    from dgl_gt.comm.group import Comm
    from dgl_gt.plan import measure

    assert measure.available_memory_bytes is memory.available_memory_bytes  # which heeds limits of control groups
    monkeypatch.setattr(measure, "available_memory_bytes", lambda: 6 << 30)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    left = measure.available_rank_memory(Comm()) - memory.peak_memory_bytes()
    assert left == pytest.approx(2 << 30, abs=1 << 20)


@pytest.mark.parametrize("ranks", [1, 2])
def test_calibrate_measures_every_rank(tmp_path, ranks):
    """All ranks get the same figures, and the file reads back as a profile that gives speeds."""
    out = tmp_path / "new" / "profile.yaml"
    found = run_ranks(ranks, calibrated, out)
    values, text = found[0]
    assert all(other == values for other, _ in found[1:])
    assert yaml.safe_load(out.read_text()) == values
    assert (values["kind"], values["ranks"], list(values["products"])) == ("measured", ranks, [16, 128])
    profile = read_profile(out)
    check_positive(profile, ranks)
    assert 0 <= profile.overlap <= 1 and (profile.latency_s > 0) == (ranks > 1)
    assert np.broadcast_to(profile.process_bytes, ranks).min() > 2**20 < profile.checkpointing_bytes
    assert (np.array(profile.memory_bytes) > profile.process_bytes).all()
    assert sum(profile.target_weights()) == pytest.approx(1) and min(profile.target_weights()) > 0
    assert f"wrote {out}" in text and ("link" in text) == (ranks > 1)
    shares = re.search(r"for --target-weights +([\d.,]+)", text)
    if ranks > 1:  # as partition reads them
        np.testing.assert_allclose([float(each) for each in shares[1].split(",")], profile.target_weights(), atol=2e-3)
    assert profile.as_dict() == values
    kept = list(out.parent.glob("dgl-gt/*.json"))
    assert len(kept) == (ranks > 1) and all(str(path) in text for path in kept), "links are part of costs"
    for costs in map(read_costs, kept):
        assert costs.profile == "measured" and costs.row_s > 0.999 * profile.row_seconds(ranks).max()


def test_costs_that_cannot_be_kept(tmp_path, monkeypatch):
    """Are no reason to lose what was measured."""
    from dgl_gt.plan.commands import keep_costs

    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert str(tmp_path / "file") in keep_costs(read_profile())
