"""Settings from YAML and options: what is taken, what is refused, and in which words."""

import argparse
import os
import re
from dataclasses import asdict

import pytest
import yaml

from dgl_gt.cli.main import main
from dgl_gt.cli.options import add_config, add_settings, config_of
from dgl_gt.partition import InputError
from dgl_gt.partition.console import run
from dgl_gt.partition.system.yaml_file import read_yaml
from dgl_gt.settings import types_of
from dgl_gt.train.config import KINDS as SECTION_KINDS
from dgl_gt.train.config import SECTIONS, SETTINGS, TrainConfig, read_config
from dgl_gt.train.metric_kinds import METRICS
from dgl_gt.train.task import task_class
from dgl_gt.train.task_config import NodeClassificationConfig
from dgl_gt.train.task_settings import SHORT_NAMES, TASKS, TaskConfig

pytestmark = pytest.mark.usefixtures("rank_here")

BAD_YAML = {
    "aliases": (b"a: &a [1]\nb: *a", "line 1 is not valid YAML: anchors, aliases and tags"),
    "a bomb": (
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (i, i, b",".join([b"*%c" % (i - 1)] * 9)) for i in range(98, 106)),
        "anchors, aliases and tags",
    ),
    "an object": (b"a: !!python/object:os.system {}", "anchors, aliases and tags"),
    "a tag that raises": (b"a: !!bool maybe", "anchors, aliases and tags"),
    "a timestamp that raises": (b"a: !!timestamp never", "anchors, aliases and tags"),
    "binary numbers without digits": (b"a: 0b_", "is not valid YAML: invalid literal"),
    "more digits than Python reads": (b"a: " + b"9" * 5000, "is not valid YAML: Exceeds the limit"),
    "a number beyond 64 bits": (b"a: 0x" + b"f" * 9000, "line 1 is not valid YAML: a number does not fit 64 bits"),
    "an escape beyond Unicode": (rb'a: "\U00110000"', "is not valid YAML: chr()"),
    "an escape beyond 32 bits": (rb'a: "\UFFFFFFFF"', "is not valid YAML: "),
    "half of a character": (rb'a: "\uD800"', "is not valid YAML: 'utf-8' codec"),
    "half of a character as key": (rb'"\uD800": 1', "is not valid YAML: 'utf-8' codec"),
    "brackets without end": (b"a: " + b"[" * 5000, "is not valid YAML: maximum recursion depth"),
    "a key twice": (b"lr: 1\nlr: 2", "line 2 is not valid YAML: the key 'lr'"),
    "a key that is no name": (b"true: 1", "the key True"),
    "a map as key": (b"{a: 1}: 2", "the key {'a': 1}"),
    "two documents": (b"a: 1\n---\nb: 2", "line 2 is not valid YAML: but found another document"),
    "an escape sequence": (b"a: \x1b[31m", "special characters are not allowed"),
    "another encoding": ("a: é".encode("latin-1"), "not a text file in UTF-8"),
    "no mapping": (b"false", "must hold keys and values"),
    "a large file": (b"#" * (5 << 20), "holds more than 4.0 MiB"),
}


@pytest.mark.parametrize(("content", "message"), BAD_YAML.values(), ids=BAD_YAML)
def test_yaml_that_is_refused(tmp_path, content, message):
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(InputError) as stopped:
        read_yaml(tmp_path / "bad.yaml")
    text = str(stopped.value)
    assert message in text and "bad.yaml" in text and "\n" not in text and "\x1b" not in text and len(text) < 400


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(InputError, match="is a pipe|is a directory|is a device"):
            read_yaml(path)


def test_yaml_that_is_taken(tmp_path):
    path = tmp_path / "good.yaml"
    path.write_bytes("\ufeffa: 1\nü: [1.5e+3, .5, text, 2020-01-01]\n8: {x: null, y: true}\n".encode())
    assert read_yaml(path) == {"a": 1, "ü": [1500.0, 0.5, "text", "2020-01-01"], 8: {"x": None, "y": True}}
    path.write_text("# nothing\n")
    assert read_yaml(path) == {}


HINTS = {section: types_of(kind) for section, kind in SECTIONS.items()}
for section, (_, kinds) in SECTION_KINDS.items():
    HINTS[section] = {key: hint for kind in kinds.values() for key, hint in types_of(kind).items()}
KINDS = {name: HINTS[section][each.name] for name, (section, each) in SETTINGS.items()}
LIMITS = {
    name: next((each.ge, each.le) for each in kind.__metadata__)
    for name, kind in KINDS.items()
    if kind.__metadata__[0].le is not None
}


def test_every_number_but_shares_has_limits():
    numbers = {name for name, kind in KINDS.items() if kind.__origin__ in (int, float)}
    shares = {"dropout", "attention_dropout", "input_dropout", "global_dropout", "label_smoothing", "mask_share"}
    assert numbers - LIMITS.keys() == shares


@pytest.mark.parametrize("name", LIMITS)
def test_every_setting_has_its_limits(name):
    least, most = LIMITS[name]
    others = {"heads": 1} if name == "hidden" else {"hidden": most} if name == "heads" else {}
    if name == "local_epochs":
        others, most = {"epochs": most, "architecture": "polynormer"}, most - 1
    if name == "gate_start":
        others = {"architecture": "gnn", "gate": "free"}
    elif name in ("initial_weight", "map_weight"):
        others = {"architecture": "gnn", "residual": "initial"}
    elif name in ("negatives_per_link", "pairs_per_step", "top"):
        others = {"task": "link_prediction"}
    elif name == "edge_weight":
        others = {"task": "pretrain"}
    elif name == "edge_hidden":
        others = {"edge_features": "weight"}
    elif name.startswith("global_"):
        others = {"global_attention": "sgformer"}
    assert read_config(**{name: most} | others).flat()[name] == most
    for value in (most * 2, least - 1):
        with pytest.raises(InputError, match=f"^{name} is .*; it must be a (whole )?number from .* to "):
            read_config(**{name: value} | others)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": 10**22}, "layers is 10000000000000000000000"),
        ({"layers": 100_000}, "layers is 100000"),
        ({"lr": 1e308}, r"lr is 1e\+308"),
        ({"lr": float("nan")}, "lr is nan; it must be a number from"),
        ({"metric": "x" * 10_000}, "^metric is 'xxxx.{0,60}"),
        ({"layers": [[1] * 1000] * 1000}, r"^layers is \[\[1.{0,200}"),
        ({"metric": "\udcff"}, "metric is '.udcff'"),
        ({"seed": True}, "seed is True"),
    ],
)
def test_values_are_shown_in_short(values, message):
    with pytest.raises(InputError, match=message):
        read_config(**values)


def test_an_unknown_key_is_shown_in_short(tmp_path):
    (tmp_path / "c.yaml").write_text(f"? {'k' * 5000}\n: 1\n")
    with pytest.raises(InputError) as stopped:
        read_config(tmp_path / "c.yaml")
    assert "unknown key 'kkkk" in str(stopped.value) and len(str(stopped.value)) < 400
    (tmp_path / "c.yaml").write_text("hiden: 8\n")
    with pytest.raises(InputError, match="unknown key 'hiden'; .*model.hidden, "):
        read_config(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gate": "sigmoid"}, "gate is 'sigmoid', .* architecture is transformer"),
        ({"map_weight": 1.0}, "map_weight is 1.0, .* architecture is transformer"),
        ({"architecture": "gnn", "ffn": 4}, "ffn is 4, .* architecture is gnn"),
        ({"architecture": "gcn"}, "architecture is 'gcn'"),
        ({"architecture": ["gnn"]}, "architecture is .*gnn.*"),
        ({"input": "none"}, "input is 'none'"),
        ({"residual": "none"}, "residual is 'none'"),
        ({"architecture": "gnn", "residual": "initial", "input": "none"}, "input is 'none', .* residual 'initial'"),
        ({"architecture": "gnn", "map_weight": 1.0}, "map_weight is 1.0, .* residual is linear"),
        ({"architecture": "gnn", "input": "none", "score": "dot"}, "input is 'none'"),
        (
            {"architecture": "gnn", "edge_features": "weight"},
            "architecture is 'gnn', .* edge features .* 'transformer'",
        ),
        ({"schedule": "plateau", "patience": 0}, "schedule is plateau"),
        (
            {"score": "gcn", "attention_dropout": 0.1},
            "attention_dropout is 0.1",
        ),
        (
            {"edge_update": True},
            "edge_update is True",
        ),
        ({"edge_hidden": 4}, "edge_hidden is 4"),
        ({"edge_features": "weight", "score": "gcn"}, "score is 'gcn'"),
        ({"edge_role": "key_value"}, "edge_role is key_value"),
        ({"edge_features": "weight", "edge_role": "keys"}, "edge_role is 'keys'"),
        ({"edge_features": "weight", "edge_input": "raw", "edge_hidden": 4}, "edge_hidden is 4, .* linear or mlp"),
        (
            {"architecture": "gnn", "gate_start": 0.5},
            "gate_start is 0.5, .* leave it out, or choose the gate free or constant",
        ),
        ({"global_layers": 2}, "global_layers is 2, .* choose the global_attention polynormer or sgformer"),
        ({"global_weight": 0.8, "architecture": "polynormer"}, "global_weight is 0.8, .* polynormer"),
        ({"local_epochs": 3}, "local_epochs is 3"),
        ({"local_epochs": 9, "epochs": 9, "global_attention": "polynormer"}, "it must be below epochs"),
    ],
)
def test_settings_that_contradict_each_other(values, message):
    with pytest.raises(InputError, match=message):
        read_config(**values)


def test_a_value_of_the_file_is_named_as_the_file_s(tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text("optimizer: {weight_decay: -1}\nmodel:\n  hidden: 30\n")
    with pytest.raises(InputError, match="c.yaml: weight_decay is -1"):
        read_config(path)
    with pytest.raises(InputError, match="^lr is -1; it must be"):
        read_config(path, lr=-1, weight_decay=0.0)
    assert read_config(path, weight_decay=0.0, heads=5).model.hidden == 30
    parser = argparse.ArgumentParser("train")
    parser.add_argument("--weight-decay")
    parser.set_defaults(command=lambda args: read_config(path, weight_decay=args.weight_decay and -2.0))
    assert run(parser, []) == 2 and "c.yaml: weight_decay is -1" in capsys.readouterr().err
    assert run(parser, ["--weight-decay", "-2"]) == 2 and ": --weight-decay is -2.0" in capsys.readouterr().err


def parsed(*words):
    """The config that words of a command line give."""
    parser = argparse.ArgumentParser("train")
    add_config(parser)
    add_settings(parser, SETTINGS)
    return config_of(parser.parse_args(list(map(str, words))))


def test_options_win_over_set_and_set_over_the_file(tmp_path):
    (tmp_path / "c.yaml").write_text("model: {hidden: 8, heads: 2}\noptimizer: {kind: adam, lr: 0.5}\nepochs: 3\n")
    sets = ("--set", "model.hidden=16", "--set", "optimizer.lr=1e-2", "--set", "model.norm_first=false")
    config = parsed("--config", tmp_path / "c.yaml", *sets, "--lr", 0.25)
    assert (config.model.hidden, config.model.heads, config.model.norm_first) == (16, 2, False)
    assert (config.optimizer.kind, config.optimizer.lr, config.epochs) == ("adam", 0.25, 3)
    assert config == read_config(hidden=16, heads=2, norm_first=False, optimizer="adam", lr=0.25, epochs=3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model.hiden=3", ["'model.hiden'", "model.hidden"]),
        ("hidden", ["'hidden'", "KEY=VALUE"]),
        ("model=3", ["'model'"]),
        ("model.hidden=", ["'model.hidden='", "KEY=VALUE"]),
        ("model.hidden=[1]", ["hidden is [1]", "from 1"]),
        ("model.hidden=1: 2: 3", ["model.hidden", "YAML"]),
    ],
)
def test_sets_that_are_refused(text, words):
    with pytest.raises(InputError) as stopped:
        parsed("--set", text)
    assert all(word in str(stopped.value) for word in words)


@pytest.mark.parametrize(
    "text",
    [
        *("hidden: 16", "model: 16", "model: [16]", "model: {hidden: {x: 1}}", "model: {lr: 1}", "model.hidden: 16"),
        *("epochs: 3\nlr: 1\nhidden: 4", "{'': 3, model: {}}", "other: {hidden: 1}"),
    ],
)
def test_files_whose_settings_stand_elsewhere_are_refused(tmp_path, text):
    (tmp_path / "c.yaml").write_text(f"{text}\n")
    with pytest.raises(InputError, match="c.yaml: .*(hidden|model|lr|'')"):
        read_config(tmp_path / "c.yaml")


def test_settings_outside_their_sections_are_all_named(tmp_path):
    (tmp_path / "c.yaml").write_text("lr: 1\nhidden: 4\nepochs: 3\n")
    with pytest.raises(InputError, match="lr in optimizer; hidden in model$"):
        read_config(tmp_path / "c.yaml")


@pytest.mark.parametrize("architecture", ["gnn", "polynormer", "transformer"])
def test_the_config_of_a_run_with_another_architecture(tmp_path, architecture):
    """The defaults are those of the architecture, and what the file changes stays."""
    for name in ("transformer", "gnn", "polynormer"):
        values = asdict(read_config(architecture=name, hidden=16, norm="batch")) | {"shape": {"in_dim": 5}}
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
        found = read_config(tmp_path / "c.yaml", architecture=architecture)
        assert found == read_config(architecture=architecture, hidden=16, norm="batch")


def test_what_a_user_writes_in_a_file_stays_with_another_architecture(tmp_path):
    (tmp_path / "c.yaml").write_text("model: {norm_first: true, residual: identity}\n")
    found = read_config(tmp_path / "c.yaml", architecture="gnn").model
    assert found.norm_first and found.residual == "identity" and found.score == "gcn"


@pytest.mark.parametrize("settings", [{"architecture": "gnn\n"}, {"score": "dot\n"}, {"encodings": "degree\n"}])
def test_a_name_ends_where_it_ends(settings):
    with pytest.raises(InputError, match=f"^{next(iter(settings))} is"):
        read_config(**settings)


@pytest.mark.parametrize("kind", TASKS.values(), ids=TASKS)
def test_a_task_is_found_by_its_name(kind):
    found = task_class(kind())
    assert (
        f"{found.__name__}Config" == kind.__name__
        and (kind().node_data or kind().edge_data or kind().reads_pairs)
        and set(kind.metrics) <= METRICS.keys()
    )
    for name in ("read", "assume", "sizes", "metric", "rows_of_loss", "batches", "loss", "evaluate", "answer"):
        assert hasattr(found, name) or name in found.__dataclass_fields__, name


def test_the_settings_of_a_task_are_those_of_its_kind():
    assert read_config(task="node_classification").task == NodeClassificationConfig()
    for short, kind in SHORT_NAMES.items():
        assert read_config(task=short).task == TASKS[kind]()
    with pytest.raises(InputError, match="^task is 'nothing'"):
        read_config(task="nothing")
    with pytest.raises(InputError, match="^task is node_classification"):
        TaskConfig()


def test_what_a_file_says_of_exchange_and_checkpoints(tmp_path):
    (tmp_path / "c.yaml").write_text("exchange: {strategy: mesh=2, depth: 1}\ncheckpoints: {every: 50}\non_nan: skip\n")
    found = read_config(tmp_path / "c.yaml")
    assert found.exchange.choice == ("mesh=2", 1) and found.checkpoints.interval == (50, None)
    assert found == read_config(strategy="mesh=2", checkpoint_every=50, on_nan="skip")
    assert read_config().exchange.choice == (None, 1)
    for wrong in ({"strategy": "rings"}, {"strategy": "mesh=0"}, {"depth": 2, "strategy": "auto"}, {"depth": 0}):
        with pytest.raises(InputError, match=f"^{next(iter(wrong))} is"):
            read_config(**wrong)


def test_a_section_is_a_section():
    with pytest.raises(InputError, match="optimizer is 3"):
        TrainConfig(optimizer=3)


def test_changing_one_config_leaves_the_others(tmp_path):
    config, again = read_config(lr=0.5), read_config()
    assert config.changed(hidden=32, epochs=7).flat() == {**config.flat(), "hidden": 32, "epochs": 7}
    assert config.flat() == {**again.flat(), "lr": 0.5} and again == TrainConfig()
    gnn = read_config(hidden=16, dropout=0.0).changed(architecture="gnn")
    assert (gnn.model.hidden, gnn.model.dropout, gnn.model.score) == (16, 0.0, "gcn")
    assert gnn.changed(architecture="polynormer").changed(architecture="transformer").model.score == "dot"
    with pytest.raises(InputError, match="unknown key 'hiden'; .* hidden, "):
        config.changed(hiden=3)


def test_the_short_help_and_the_whole(capsys):
    found = []
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as ended:
            main(["train", option])
        assert ended.value.code == 0
        found.append(set(re.findall(r"(?m)^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out)))
    assert found[0] < found[1] and len(found[0]) <= 28
    assert {f"--{name.replace('_', '-')}" for name in SETTINGS} <= found[1]
