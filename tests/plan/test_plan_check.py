"""``dgl-gt plan --check``: what was predicted beside what a run measured."""

import json

import numpy as np
import pytest
from selector_cases import planned, refused


def trial(choice, predicted_seconds, measured_seconds, measured_peak_bytes) -> dict:
    return {
        "choice": choice,
        "predicted_seconds": predicted_seconds,
        "measured_seconds": measured_seconds,
        "predicted_sent_bytes": 1000,
        "measured_sent_bytes": 1000,
        "predicted_peak_bytes": 900,
        "measured_peak_bytes": measured_peak_bytes,
    }


def without(values: dict, name: str) -> dict:
    return {key: value for key, value in values.items() if key != name}


def record(**changes) -> dict:
    """What a run leaves, as far as --check reads it."""
    choice = {
        "cut": "edge",
        "strategy": "halo_h",
        "depth": 1,
        "activation_checkpoint": "none",
        "seconds": 0.5,
        "sent_bytes": 1000,
        "peak_bytes": 900,
        "memory_bytes": 3000,
    }
    trials = [trial("a", 0.5, 0.4, 1000), trial("b", 0.6, 0.8, 500)]
    plan = {"predicted_choice": {}, "choice": choice, "chosen": "a", "profile": {}, "model": {}, "trials": trials}
    metric = {"name": "accuracy", "validation": 0.5, "test": 0.5}
    run = {"strategy": "halo_h", "ranks": 2, "losses": [], "metric": metric, "seconds_per_epoch": 0.4}
    run |= {"exchanged_bytes_per_epoch": 1000, "peak_memory_bytes": [2000, 2500]}
    return {**run, "plan": {**plan, **changes}}


def test_check_compares_what_was_predicted_with_what_was_measured(here, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record()))
    for run in (path, tmp_path):
        found = planned(here("plan", "--check", run, "--json"))
        assert [each["predicted"] for each in found["figures"]] == [0.5, 1000, 900, 3000]
        assert [each["measured"] for each in found["figures"]] == [0.4, 1000, 1000, 2500]
        np.testing.assert_allclose([each["error"] for each in found["figures"]], [0.25, 0, -0.1, 0.2])
    done = here("plan", "--check", path)
    assert done.returncode == 0
    for words in ("seconds per epoch", "exchanged bytes", "tensors", "process", "+25.0%", "-10.0%", "+20.0%", "-25.0%"):
        assert words in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--plot", "x.png"),
        ("--profile", "x.yaml"),
        ("--world-size", "2"),
        ("--seed", "0"),
        ("--classes", "3"),
        ("--force",),
    ],
    ids=" ".join,
)
def test_check_takes_no_options_of_a_plan(here, tmp_path, options):
    (tmp_path / "record.json").write_text(json.dumps(record()))
    refused(
        here("plan", "--check", tmp_path, *options),
        f"compares the run {tmp_path} with its own plan; leave {options[0]} out",
    )


def test_check_of_cuts_of_one_kind(here, tmp_path):
    """Both trials may have the same name; the seconds predicted tell them apart."""
    run = record(chosen="b")
    run["plan"]["trials"][0]["choice"] = "b"
    run["plan"]["choice"]["seconds"] = 0.6
    (tmp_path / "record.json").write_text(json.dumps(run))
    tensors = planned(here("plan", "--check", tmp_path, "--json"))["figures"][2]
    assert tensors["measured"] == 500


def test_check_of_what_is_no_run(here, tmp_path):
    files = {
        "no-plan.json": (json.dumps(without(record(), "plan")), "holds no plan; train with --strategy auto"),
        "list.json": ("[1, 2]", "Expected `object`, got `array`"),
        "null.json": (json.dumps(record() | {"plan": None}), "holds no plan"),
        "text.json": ("not json", "is malformed"),
        "number.json": (json.dumps(record() | {"plan": 3}), "got `int` - at `$.plan`"),
        "half.json": (json.dumps({"plan": record()["plan"]}), "missing required field `strategy`"),
        "text-figures.json": (
            json.dumps(record() | {"seconds_per_epoch": "0.5"}),
            "got `str` - at `$.seconds_per_epoch`",
        ),
        "huge.json": (
            json.dumps(record() | {"peak_memory_bytes": [10**400]}),
            "Expected `int` <= 4611686018427387904 - at `$.peak_memory_bytes[0]`",
        ),
        "huge-memory.json": (
            json.dumps(record(choice=record()["plan"]["choice"] | {"memory_bytes": 10**400})),
            "lacks figures of the candidate that was chosen, a",
        ),
        "deep.json": ("[" * 100_000, "Expected `object`, got `array`"),
        "early.json": (json.dumps(record() | {"finished": False}), "is the record of a run that ended early"),
        "other.json": (json.dumps(record(chosen="c")), "lacks figures of the candidate that was chosen, c"),
        "no-seconds.json": (json.dumps(without(record(), "seconds_per_epoch")), "lacks figures"),
        "no-memory.json": (json.dumps(record() | {"peak_memory_bytes": []}), "lacks figures"),
    }
    for name, (content, message) in files.items():
        (tmp_path / name).write_text(content)
        refused(here("plan", "--check", tmp_path / name), name, message, "--strategy auto")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    refused(here("plan", "--check", tmp_path / "binary.json"), "not a text file")
    refused(here("plan", "--check", tmp_path / "nothing"), "no such file")
    refused(here("plan", "--check", "n" * 5000), "File name too long")
    zero = record()
    zero["plan"]["trials"][1]["measured_seconds"] = 0
    (tmp_path / "zero.json").write_text(json.dumps(zero))
    assert here("plan", "--check", tmp_path / "zero.json").returncode == 0
    refused(here("plan", "--check", tmp_path), "record.json")
