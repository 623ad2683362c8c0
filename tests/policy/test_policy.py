"""Policies as users write them."""

import pytest

from dgl_gt.exchange.policy.policy import ADAPTIVE, Mode, Policy, Rule, parse_mode, read_policy
from dgl_gt.partition import InputError
from dgl_gt.partition.figures.strategies import HALO, strategy_of
from dgl_gt.train.config import read_config

MODES = [
    ("exact", Mode()),
    ("stale=1", Mode()),
    ("bf16", Mode(16)),
    ("int8", Mode(8)),
    ("int4", Mode(4)),
    ("stale=4", Mode(32, 4)),
    ("stale=4,int8", Mode(8, 4)),
    ("int4,stale=2", Mode(4, 2)),
    ("stale=1000,exact", Mode(32, 1000)),
    ("alone", Mode(0)),
    ("alone,edges=0.5", Mode(0, edge_share=0.5)),
    ("edges=0.25,alone", Mode(0, edge_share=0.25)),
    ("alone,edges=1", Mode(0)),
    ("sampled=0.5", Mode(share=0.5)),
    ("sampled=.25,int4", Mode(4, share=0.25)),
    ("sampled=1", Mode()),
    ("stale=auto", Mode(32, ADAPTIVE)),
    ("stale=auto,int8", Mode(8, ADAPTIVE)),
]


@pytest.mark.parametrize(("text", "mode"), MODES)
def test_modes(text, mode):
    assert parse_mode(text) == mode and parse_mode(str(mode)) == mode
    assert read_policy(text) == Policy((Rule(mode),)) and read_policy(text).is_exact == (mode == Mode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "int16",
        "stale",
        "stale=0",
        "stale=-1",
        "stale=1001",
        "stale=9999999999",
        "stale=2,stale=3",
        "int8,int4",
        "int8,",
    ]
    + [
        "INT8",
        "int8 ",
        "alone,int8",
        "edges=0.5",
        "edges=0.5,int8",
        "alone,edges=0",
        "alone,edges=0.5,sampled=0.5",
        "alone,sampled=0.5",
        "sampled=0",
        "sampled=2",
        "sampled=1e-9",
        "sampled=nan",
        "stale=Auto",
    ]
    + ["stale=auto,stale=2", "sampled=0.5,stale=2", None, 8, ["int8"], True],
)
def test_other_modes_are_refused(text):
    with pytest.raises(InputError, match="policy is .*"):
        parse_mode(text)


RULES = """
rules:
- mode: stale=4,int8
- mode: int4
  direction: gradients
- mode: exact
  layers: [0]
- mode: bf16
  layers: [0, 2]
  direction: rows
  peers: [[1, 0]]
"""


@pytest.fixture
def policy_file(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(RULES)
    return path


def test_the_last_rule_that_holds_decides(policy_file):
    policy = read_policy(str(policy_file))
    assert policy.mode(1, "rows", 0, 1) == Mode(8, 4)
    assert policy.mode(1, "gradients", 0, 1) == Mode(4)
    assert policy.mode(0, "gradients", 1, 0) == Mode()
    assert policy.mode(0, "rows", 1, 0) == policy.mode(2, "rows", 1, 0) == Mode(16)
    assert policy.mode(2, "rows", 0, 1) == Mode(8, 4)
    assert Policy().mode(0, "rows", 0, 1) == Mode() and Policy().is_exact and not policy.is_exact


def test_a_policy_is_described_as_it_is_written(policy_file, tmp_path):
    import yaml

    policy = read_policy(str(policy_file))
    assert policy.described() == yaml.safe_load(RULES)["rules"]


def test_layers_and_ranks_must_be_there(policy_file):
    policy = read_policy(str(policy_file))
    policy.check(3, 2)
    policy.check(None, 2)
    with pytest.raises(InputError, match="names layer 2, but the model has 2 layers, counted from 0"):
        policy.check(2, 2)
    policy.check(3, 1)  # a single rank exchanges nothing
    with pytest.raises(InputError, match=r"names the pair \[0, 2\], but there are 2 ranks"):
        Policy((Rule(Mode(8), peers=((0, 2),)),)).check(3, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "rules is None; it must be a list of rules"),
        ("rules: int8", "rules is 'int8'; it must be a list"),
        ("mode: int8", "unknown key 'mode'; allowed are rules"),
        ("rules: [int8]", "a rule is 'int8'; it must be a mapping with the keys mode, layers"),
        ("rules: [{layers: [0]}]", "has no mode; add one: exact, bf16"),
        ("rules: [{mode: int3}]", "policy is 'int3'; it must be exact"),
        ("rules: [{mode: int8, layer: 0}]", "a rule: unknown key 'layer'; allowed are direction, layers, mode, peers"),
        ("rules: [{mode: int8, layers: 0}]", "layers is 0; it must be a list of layers"),
        ("rules: [{mode: int8, layers: [-1]}]", r"layers is \[-1\]; it must be a list"),
        ("rules: [{mode: int8, layers: [true]}]", r"layers is \[True\]; it must be a list"),
        ("rules: [{mode: int8, direction: back}]", "direction is 'back'; it must be rows or gradients"),
        ("rules: [{mode: int8, peers: [0, 1]}]", r"peers is \[0, 1\]; it must be a list of pairs"),
        ("rules: [{mode: alone, layers: [0]}]", "the mode alone is for all layers and ranks; make it the only rule"),
        ("rules: [{mode: int8}, {mode: alone}]", "the mode alone is for all layers and ranks"),
        ("rules: [{mode: 'sampled=0.5', direction: rows}]", "the mode sampled=0.5 is for all layers and ranks"),
        ("rules: [{mode: int8, peers: [[1, -1]]}]", r"peers is \[\[1, -1\]\]; it must be a list of pairs"),
    ],
)
def test_files_that_hold_no_rules_are_refused(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=f"bad.yaml: .*{message}|bad.yaml: {message}"):
        read_policy(str(path))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"missing.yml"):
        read_policy(str(tmp_path / "missing.yml"))


def test_settings():
    assert read_config().exchange.policy == "exact" and read_config(policy="int8").exchange.policy == "int8"
    with pytest.raises(InputError, match="policy is 'int7'"):
        read_config(policy="int7")


def test_a_sample_travels_as_the_rest_of_the_mode_says():
    policy = read_policy("sampled=0.25,int8")
    assert policy.sampled_share == 0.25 and policy.without_sampling() == read_policy("int8")
    assert read_policy("stale=2,int8").sampled_share == Policy().sampled_share == 1


def test_messages_name_the_file_that_the_user_gave(policy_file):
    policy = read_policy(policy_file)
    with pytest.raises(InputError, match=f"policy is {policy_file}, but the strategy ring follows no policy"):
        policy.check_strategy(strategy_of("ring"), 1, "edge")
    with pytest.raises(InputError, match=f"policy is {policy_file}, which needs --depth 1, but the depth is 2"):
        policy.check_strategy(HALO, 2, "edge")
    with pytest.raises(InputError, match=f"policy is {policy_file}, but activation_checkpoint .full."):
        policy.check_model("full")
    with pytest.raises(InputError, match="policy is int8"):
        Policy((Rule(Mode(8)),)).check_strategy(strategy_of("ring"), 1, "edge")
