"""Predictions for a policy of the user's: ``dgl-gt plan --policy``."""

import pytest
from selector_cases import SMALL, planned, profile_values, refused, write_profile

WIDE = ["--hidden", 64, *SMALL[2:]]


@pytest.fixture
def slow(tmp_path):
    """A profile with links of 1 MB/s."""
    return write_profile(tmp_path / "slow.yaml", profile_values(link_bytes_per_s=[[1e6] * 2] * 2))


def test_beside_an_exact_step(here, both, slow):
    plan = ["plan", *both, *WIDE, "--profile", slow, "--json", "--policy"]
    found = {mode: planned(here(*plan, mode)) for mode in ("full", "int8", "stale=4,int8", "sampled=0.25", "none")}
    assert "policy" not in found["full"]
    assert found["int8"]["choice"] == found["full"]["choice"]
    of_mode = {mode: plan["policy"] for mode, plan in found.items() if mode != "full"}
    assert of_mode["int8"]["policy"] == [{"mode": "int8"}]
    ratios = {mode: each["predicted_sent_bytes"] / each["predicted_exact_sent_bytes"] for mode, each in of_mode.items()}
    for each in of_mode.values():
        assert each["predicted_seconds"] < each["predicted_exact_seconds"]
        exact = next(
            way
            for way in found["full"]["candidates"]
            if (way["directory"], way["strategy"], way["depth"]) == (each["directory"], each["strategy"], 1)
        )
        assert each["predicted_exact_sent_bytes"] == exact["sent_bytes"] and each["strategy"] in ("halo_h", "mirror")
    assert ratios["none"] == 0 and of_mode["none"]["strategy"] == "mirror"
    assert ratios["sampled=0.25"] == pytest.approx(0.25)
    assert ratios["int8"] == pytest.approx(72 / 256, abs=0.02) and ratios["stale=4,int8"] < 0.1
    text = here(*plan[:-2], "--policy", "stale=4,int8").stdout
    assert "policy, approximate       stale=4,int8\nstrategy                  " in text
    assert "from step to step" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "int9"], "--policy is 'int9'; it must be full, bf16"),
        (["--policy", "stale=auto"], "stale=auto, whose period is known only in a run; plan for stale=4"),
        (["--policy", "none"], "the policy none needs a vertex cut; partition with --cut vertex"),
        (["--policy", "int8", "--search-policy", "a.yaml"], "leave --policy out"),
    ],
)
def test_what_cannot_be_predicted(here, shards, words, message):
    refused(here("plan", shards / "edge", *WIDE, *words), message, lines=None)


def test_graphs_and_single_parts_are_refused(here, tmp_path):
    graph = "sample:communities?nodes=300&features=12&seed=0"
    done = here("plan", graph, *WIDE, "--world-size", 2, "--policy", "int8")
    refused(done, "plan predicts policies for shards only; partition the graph first, or pass --policy full")
    assert here("partition", graph, "--parts", 1, "--out", tmp_path / "one").returncode == 0
    refused(here("plan", tmp_path / "one", *WIDE, "--policy", "int8"), "one part exchanges nothing", lines=None)


def test_rules_must_fit_the_model_and_the_ranks(here, shards, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text("rules: [{mode: int8, layers: [5]}]")
    refused(
        here("plan", shards / "edge", *WIDE, "--policy", path),
        "the policy names layer 5, but the model has 2",
        lines=None,
    )


def test_memory_that_the_policy_keeps_counts(here, shards, slow):
    plan = ["plan", shards / "edge", *WIDE, "--profile", slow, "--policy"]
    exact = planned(here(*plan, "bf16", "--json"))["policy"]["predicted_memory_bytes"]
    done = here(*plan, "stale=4,int8", "--rank-memory", exact)
    refused(done, "with what the policy keeps from step to step, a rank needs", lines=None)
