"""The report of a training run: what the page shows, runs that are not finished, damaged files, and its size."""

import json
import os
import re
from types import SimpleNamespace

import pytest
from html_page import Page
from msgspec import to_builtins

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, partition
from dgl_gt.report.pictures import Axis, plain, share
from dgl_gt.report.run_report import MAX_POINTS, is_run, thinned, write_run_report
from dgl_gt.train import read_config, train_and_save

pytestmark = pytest.mark.usefixtures("rank_here")

QUICK = read_config(layers=1, hidden=8, heads=2, epochs=6, patience=0, seed=3)
LINE = {
    "epoch": 1,
    "loss": 2.5,
    "validation": 0.25,
    "test": 0.5,
    "lr": 0.001,
    "seconds": 0.5,
    "nodes_per_s": 400.0,
    "edges_per_s": 4000.0,
    "exchange_share": 0.125,
    "exchanged_bytes": 2048,
    "peak_memory_bytes": [1 << 20, 3 << 20],
}
PLAN = {
    "predicted_choice": {},
    "chosen": "halo_h on <the> edge cut",
    "choice": {
        "cut": "edge",
        "strategy": "halo_h",
        "depth": 1,
        "activation_checkpoint": "none",
        "seconds": 0.3,
        "sent_bytes": 1024,
        "peak_bytes": 1000,
        "memory_bytes": 4 << 20,
    },
    "profile": {},
    "model": {},
    "trials": [
        {
            "choice": "halo_h on <the> edge cut",
            "predicted_seconds": 0.3,
            "measured_seconds": 0.25,
            "predicted_sent_bytes": 1024,
            "measured_sent_bytes": 1024,
            "predicted_peak_bytes": 1000,
            "measured_peak_bytes": 1100,
        }
    ],
}
RECORD = {
    "finished": True,
    "strategy": "halo_h",
    "depth": 2,
    "ranks": 2,
    "graph": {"source": "graph.npz", "cut": "edge", "nodes": 200, "edges": 2000, "checksum": "0123456789abcdef" * 4},
    "epochs": 1,
    "best_epoch": 1,
    "losses": [2.5],
    "validations": [0.25],
    "metric": {"name": "roc_auc", "validation": 0.25, "test": 0.5},
    "seconds_per_epoch": 0.5,
    "exchange_share": 0.125,
    "exchanged_bytes_per_epoch": 2048,
    "policy": None,
    "peak_memory_bytes": [1 << 20, 3 << 20],
}


@pytest.fixture
def run(tmp_path):
    """A function that makes the directory of a run from its files, and returns it."""

    def make(record=RECORD, lines=(LINE,), **files):
        folder = tmp_path / "my run"
        folder.mkdir(exist_ok=True)
        if record is not None:
            (folder / "record.json").write_text(json.dumps(record))
        if lines is not None:
            (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        return folder

    return make


def report(folder):
    out = folder.parent / "report.html"
    numbers = write_run_report(folder, out, force=True)
    assert json.loads(out.with_suffix(".json").read_text()) == numbers
    return SimpleNamespace(numbers=numbers, page=Page(out.read_text()))


def lines_of(epochs):
    return [
        LINE | {"epoch": epoch, "loss": 1 / epoch, "validation": 0.5 if epoch == 3 else 0.1}
        for epoch in range(1, epochs + 1)
    ]


def test_a_run_that_was_trained_and_profiled(awkward_graph, tmp_path):
    """The page holds the numbers of the record, needs nothing else, and has a style for narrow and for dark screens."""
    partition(awkward_graph(0), 1, tmp_path / "shards")
    sg = dgl_gt.load(tmp_path / "shards")
    record = to_builtins(train_and_save(sg, QUICK.changed(checkpoint_every=4), tmp_path / "run", timeline=True)[1])
    found = report(tmp_path / "run")
    page, numbers = found.page, found.numbers
    assert not re.search(
        r"https?:|//|<script|<link|<img|@import|url\(|src=|href=|javascript", page.source, re.IGNORECASE
    )
    assert "prefers-color-scheme: dark" in page.source and "max-width: 46rem" in page.source
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    assert (
        numbers["finished"] and numbers["metric"] == record["metric"] and numbers["best_epoch"] == record["best_epoch"]
    )
    assert [loss for _, loss in numbers["curves"]["loss"]] == record["losses"]
    assert numbers["graph"] == record["graph"] and numbers["checkpoints"] == [4]
    assert numbers["step"]["epoch"] == 3 and len(numbers["step"]["ranks"]) == 1
    assert "layers.0, backward" in {each["name"] for each in numbers["step"]["longest"]}
    test = f"{100 * record['metric']['test']:.2f} %"
    assert (
        f"The run has finished after 6 epochs. Its best validation was in epoch {record['best_epoch']}" in page.words()
    )
    assert test in page.text.replace("\u00a0", " ")
    assert [tag for tag, attributes in page.tags if attributes.get("class") == "time"] == ["svg"]
    assert {"model.hidden", "epochs", "model.layers", "seed"} <= {line[0] for table in page.tables for line in table}


def test_what_is_measured_and_predicted(run):
    page = report(run(RECORD | {"plan": PLAN})).page
    cells = {line[0]: [cell.replace("\u00a0", " ") for cell in line[1:]] for table in page.tables for line in table}
    assert cells["seconds per epoch"] == ["0.3 s", "0.5 s", "-40.0 %"]
    assert cells["exchanged bytes per epoch"] == ["1.0 KiB", "2.0 KiB", "-50.0 %"]
    assert cells["trial: halo_h on <the> edge cut"] == ["0.3 s", "0.25 s", "+20.0 %"]
    assert cells["0"] == ["1.0 MiB"] and cells["1"] == ["3.0 MiB"]
    assert (
        "graph.npz · 200\u00a0nodes · 2,000\u00a0edges · edge cut · 2\u00a0ranks · strategy halo_h, depth 2"
        in page.text
    )
    assert "test ROC-AUC is 50.00" in page.words()


def test_an_approximate_run_is_named_so(run):
    policy = {"rules": [{"mode": "int8", "layers": [0]}], "exact_bytes_per_epoch": 8192}
    found = report(run(RECORD | {"policy": policy}))
    assert found.numbers["policy"] == policy
    assert "2.0 KiB per epoch under an approximate policy; exact steps would send 8.0 KiB" in found.page.words()
    assert "approximate" not in report(run(RECORD)).page.words()


STEP = {
    "epoch": 3,
    "strategy": "halo_h",
    "ranks": [{"seconds": 1.0, "compute_s": 0.9, "exchange_s": 0.07, "wait_s": 0.03, "spans": []}],
}


def test_shares_of_one_step_and_of_all_steps_are_told_apart(run):
    words = report(run(timeline__json=json.dumps(STEP))).page.words().replace("\u00a0", " ")
    assert "Exchange12.5 %of the time of all steps, waits included; 2.0 KiB per epoch" in words
    _, of_one_step = words.split("Where the time of one step goes")
    assert "the training step of epoch 3 alone" in of_one_step and "exchange for 7 %" in of_one_step
    assert "Over all steps, exchange and wait take 12.5 %, not counting the gradient sum" in of_one_step


def test_the_share_of_a_run_that_goes_on_is_of_all_its_steps(run):
    """As in the record of a finished one: a slow step weighs more. A median would be 0.3."""
    lines = [LINE | {"seconds": 1.0, "exchange_share": 0.5}, LINE | {"epoch": 2, "seconds": 3.0, "exchange_share": 0.1}]
    assert report(run(None, lines)).numbers["exchange_share"] == pytest.approx(0.2)
    assert report(run(None, [LINE | {"seconds": 0.0}])).numbers["exchange_share"] is None


def test_values_of_the_curves_can_be_read(run):
    """The last one of each, and the metrics of the best epoch."""
    lines = [each | {"lr": 0.25, "nodes_per_s": 12_345.0} for each in lines_of(5)]
    page = report(run(RECORD | {"metric": {"name": "accuracy", "validation": 0.5, "test": 0.25}}, lines)).page
    legends = [
        re.sub(r"<.*?>|&nbsp;", "", each) for each in re.findall(r'<p class="legend">(.*?)</p>', page.source, re.DOTALL)
    ]
    assert [each.replace("\u00a0", " ").split() for each in legends] == [
        ["last", "epoch", "0.2"],
        ["best", "epoch", "validation", "50.00", "%", "test", "25.00", "%"],
        ["last", "epoch", "0.25"],
        ["last", "epoch", "12k"],
        ["last", "epoch", "12.5", "%"],
    ]


def test_without_a_profile_one_sentence_says_how_to_get_one(run):
    page = report(run()).page
    assert "No step of this run was profiled; dgl-gt train --timeline records one." in page.words()
    assert "There was no prediction: --strategy auto makes one." in page.words()


def test_a_run_that_still_goes_on(run):
    """Its record is as old as its best model; its epochs and a line that is being written are newer."""
    old = {key: RECORD[key] for key in ("strategy", "depth", "ranks", "graph", "losses", "metric", "best_epoch")}
    folder = run(old | {"finished": False}, lines_of(5), config__yaml="epochs: 9\nlayers: 4\n")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 6, "lo')
    (folder / "checkpoint-000004.safetensors").write_bytes(b"")
    (folder / "checkpoint-000002.safetensors").write_bytes(b"")
    found = report(folder)
    assert (found.numbers["epochs"], found.numbers["planned_epochs"]) == (5, 9)
    assert (found.numbers["best_epoch"], found.numbers["metric"]["validation"]) == (3, 0.5)
    text = found.page.words()
    assert "The run has not finished: it has had 5 epochs of 9, and it is still going or was interrupted." in text
    assert "--resume goes on from the checkpoint after epoch 4." in text
    assert "A prediction is compared once the run has finished." in text


@pytest.mark.parametrize(
    ("record", "lines", "says"),
    [
        (None, lines_of(4), "it has had 4 epochs, and"),
        (None, [], "it has had 0 epochs"),
        (RECORD, None, "The run has finished after 1 epoch."),
        (
            RECORD | {"plan": None, "seconds_per_epoch": None, "validations": [None], "peak_memory_bytes": None},
            None,
            "The run has finished",
        ),
        (RECORD | {"best_epoch": 0, "losses": [], "finished": False}, None, "No epoch has been evaluated yet."),
        (None, [LINE | {"loss": None, "validation": None, "test": None}], "No epoch has been evaluated yet."),
        ({key: RECORD[key] for key in ("strategy", "ranks", "losses", "metric")}, None, "The run has finished"),
    ],
    ids=["no record", "nothing yet", "no lines", "nulls", "no evaluation", "a skipped step", "of save_model"],
)
def test_whatever_is_there_is_shown(run, record, lines, says):
    assert says in report(run(record, lines)).page.words()


def test_only_checkpoints_are_there(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint-000007.safetensors").write_bytes(b"")
    assert is_run(tmp_path / "run")
    assert "it has had 7 epochs" in report(tmp_path / "run").page.words()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2: Input data was truncated"),
        ("[]", "line 2: Expected `object`, got `array`"),
        (json.dumps(LINE | {"epoch": 1}), "line 2: epoch 1 comes after epoch 1"),
        (json.dumps(LINE | {"epoch": 2, "loss": "low"}), r"line 2: Expected `float \| null`, got `str`.*loss"),
        (json.dumps(LINE | {"epoch": 2, "loss": 1e300}), "line 2: Expected `float` <= 1e.39"),
        (json.dumps({"epoch": 2}), "line 2: Object missing required field `seconds`"),
        ("[" * 100_000, "line 2: "),
        ("x" * (3 << 20), "line 2: "),
        ("\x00", "line 2: "),
    ],
    ids=["truncated", "array", "twice", "text", "huge", "missing", "deep", "long", "binary"],
)
def test_a_damaged_line_is_named(run, line, problem):
    folder = run()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=rf"metrics\.jsonl, {problem}.*; each line must be a JSON object"):
        report(folder)
    assert not (folder.parent / "report.html").exists() and not (folder.parent / "report.json").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("record.json", "{"),
        ("record.json", json.dumps(RECORD | {"ranks": -1})),
        ("record.json", json.dumps(RECORD | {"losses": 3})),
        ("timeline.json", '{"epoch": 1, "strategy": "halo", "ranks": []}'),
        ("timeline.json", '{"epoch": 1, "strategy": "halo", "ranks": [{"spans": [{"kind": "sleep"}]}]}'),
    ],
    ids=["no JSON", "ranks", "losses", "no ranks", "kinds"],
)
def test_other_damaged_files_are_named(run, name, text):
    folder = run()
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=rf"{name} is damaged or from another version of dgl-gt: .*; move it away"):
        report(folder)


def test_text_of_others_is_escaped(run):
    """From every file, and in the name of the directory."""
    evil = "<script>alert(1)</script>\x1b[31m&"
    record = RECORD | {"strategy": evil, "graph": RECORD["graph"] | {"source": evil, "cut": evil}}
    record["metric"] = RECORD["metric"] | {"name": evil}
    span = {"kind": "wait", "name": evil, "start": 0.0, "end": 1.0}
    rank = {"seconds": 1.0, "compute_s": 0.0, "exchange_s": 0.0, "wait_s": 1.0, "spans": [span]}
    step = {"epoch": 1, "strategy": evil, "ranks": [rank]}
    folder = run(record, timeline__json=json.dumps(step), config__yaml='"<b>x</b>": .nan\n"c": ["<i>"]\n')
    folder = folder.rename(folder.with_name("<script>"))
    page = report(folder).page
    assert "<script" not in page.source and "<b>x" not in page.source and "<i>" not in page.source
    assert "\x1b" not in page.source and "alert(1)" in page.text


def test_a_long_run_and_a_long_step_make_a_small_page(run):
    """100,000 epochs with a peak, and a step of 300 ranks with 1,000 spans each."""
    epochs = 100_000
    peak = LINE | {"epoch": 54_321, "loss": 1e6}
    folder = run(lines=(peak if epoch == 54_321 else LINE | {"epoch": epoch} for epoch in range(1, epochs + 1)))
    kinds = ("compute", "exchange", "wait")
    spans = [{"kind": kinds[i % 3], "name": "x", "start": i / 1000, "end": (i + 1) / 1000} for i in range(1000)]
    rank = {"seconds": 1.0, "compute_s": 0.4, "exchange_s": 0.3, "wait_s": 0.3, "spans": spans}
    (folder / "timeline.json").write_text(json.dumps({"epoch": 1, "strategy": "halo_h", "ranks": [rank] * 300}))
    found = report(folder)
    assert all(len(curve) <= MAX_POINTS for curve in found.numbers["curves"].values())
    loss = found.numbers["curves"]["loss"]
    assert [54_321, 1e6] in loss and loss[0][0] == 1 and loss[-1][0] == epochs
    assert len(found.page.source) < 3 << 20
    assert "The first 64 of 300 ranks are drawn." in found.page.words()


def test_a_step_part_by_part_copies_rows(run):
    folder, without = run(), {"seconds": 1.0, "compute_s": 0.75, "exchange_s": 0.25, "wait_s": 0.0, "spans": []}
    for rank, is_told in ((without, False), (without | {"exchange_s": 0.0, "file_s": 0.25}, True)):
        (folder / "timeline.json").write_text(json.dumps({"epoch": 1, "strategy": "halo_h", "ranks": [rank]}))
        words = report(folder).page.words()
        assert ("copy rows from files and to them for 25 %, and wait" in words) == is_told, words


def test_thinning_keeps_the_ends_and_the_extremes():
    points = [(epoch, None if epoch % 7 == 0 else float(epoch % 1001)) for epoch in range(1, 54_322)]
    there = [[epoch, value] for epoch, value in points if value is not None]
    found = thinned(points)
    assert len(found) <= MAX_POINTS and found == sorted(found) and found[0] == there[0] and found[-1] == there[-1]
    assert all(point in there for point in found[:50])
    values = [value for _, value in there]
    assert {min(values), max(values)} <= {value for _, value in found}
    assert thinned(points[:100]) == there[: len(thinned(points[:100]))]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.13, 2.4], ["0", "0.5", "1", "1.5", "2", "2.5"]),
        ([0.11, 0.98], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([12_000.0, 31_000.0], ["10k", "15k", "20k", "25k", "30k", "35k"]),
        ([0.5], ["0.44", "0.46", "0.48", "0.5", "0.52", "0.54", "0.56"]),
        ([-3.0, 4.0], ["-4", "-2", "0", "2", "4"]),
        ([0.0], None),
        ([5e-324, 0.0], None),
        ([-1e39, 1e39], None),
    ],
    ids=["usual", "shares", "large", "flat", "negative", "zero", "tiny", "huge"],
)
def test_axes_end_at_round_numbers(values, labels):
    axis = Axis.of(values, plain)
    assert axis.labels[0][0] == 0 and axis.labels[-1][0] == 1 and 2 <= len(axis.labels) <= 8
    assert all(-1e-9 <= axis.place(value) <= 1 + 1e-9 for value in values)
    assert labels is None or [text for _, text in axis.labels] == labels


def test_axes_of_epochs_and_shares():
    assert [text for _, text in Axis.of_epochs([1, 60]).labels] == ["20", "40", "60"]
    assert [text for _, text in Axis.of_epochs([1]).labels] == ["1"]
    assert [text for _, text in Axis.of([0.97, 0.99], share).labels][:2] == ["97\u00a0%", "97.5\u00a0%"]
    assert Axis.of([5.0, 6.0], plain, from_zero=True).labels[0] == (0, "0")


def test_the_command_takes_shards_and_runs_and_refuses_others(run, awkward_graph, tmp_path, capsys):
    partition(awkward_graph(0), 2, tmp_path / "shards")
    for number, folder in enumerate([run(), tmp_path / "shards"]):
        assert main(["report", str(folder), "-o", str(tmp_path / f"{number}.html")]) == 0
        assert "wrote" in capsys.readouterr().out
    assert main(["report", str(run()), "-o", str(tmp_path / "0.html"), "--json"]) == 2
    assert "0.json exists; choose another file, or replace it with --force" in capsys.readouterr().err
    assert main(["report", str(run()), "-o", str(tmp_path / "0.html"), "--json", "--force"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 2
    (tmp_path / "other").mkdir()
    for name, problem in (
        ("other", "holds neither shards nor a run"),
        ("nowhere", "is not a directory"),
        ("x" * 300, "is no"),
    ):
        assert main(["report", str(tmp_path / name), "-o", str(tmp_path / "2.html")]) == 2
        assert problem in capsys.readouterr().err
    assert not (tmp_path / "2.html").exists()


def test_the_page_stays_out_of_the_run(run, tmp_path):
    """Otherwise it would be a foreign file there, and could replace the record."""
    folder, elsewhere = run(), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link.html").symlink_to(folder / "page.html")
    pages = [folder / name for name in ("report.html", "record.html", "timeline.html", "sub/page.html")]
    for page in (*pages, elsewhere / "link.html"):
        with pytest.raises(InputError, match="would be in the directory of the run"):
            write_run_report(folder, page, force=True)
    assert sorted(os.listdir(folder)) == ["metrics.jsonl", "record.json"]


def test_the_best_epoch_of_an_unfinished_run_is_the_first_of_equals(awkward_graph, tmp_path):
    """As the trainer's: the numbers of a finished run, read again as if it were not, name the same epoch."""
    partition(awkward_graph(0), 1, tmp_path / "shards")
    sg = dgl_gt.load(tmp_path / "shards")
    record = to_builtins(train_and_save(sg, QUICK.changed(lr=1e-5, dropout=0.0), tmp_path / "run")[1])
    (tmp_path / "run" / "record.json").write_text(json.dumps(record | {"finished": False}))
    numbers = report(tmp_path / "run").numbers
    assert numbers["best_epoch"] == record["best_epoch"] and numbers["metric"] == record["metric"]
