"""The precision ``auto``, and what is said of bfloat16 that is no faster."""

import pytest
import torch
from ranks import run_ranks

import dgl_gt
from dgl_gt.partition import InputError, partition
from dgl_gt.train import model, read_config, train, train_and_save
from dgl_gt.train.model import product_seconds, with_earlier_precision, with_measured_precision

CONFIG = read_config(layers=1, hidden=16, heads=2, epochs=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("precision")
    for parts in (1, 2):
        partition("sample:communities?nodes=200&features=8&classes=3&seed=1", parts, folder / f"parts{parts}")
    return folder


def bf16_takes(seconds):
    return lambda sg, width, dtype: seconds if dtype == torch.bfloat16 else 1.0


@pytest.mark.parametrize(
    ("asked", "bf16_s", "chosen"), [("auto", 0.5, "bf16"), ("auto", 1.5, "fp32"), ("bf16", 1.5, "bf16")]
)
def test_what_is_chosen_and_said(folder, monkeypatch, capsys, asked, bf16_s, chosen):
    monkeypatch.setattr(model, "product_seconds", bf16_takes(bf16_s))
    found = with_measured_precision(dgl_gt.load(folder / "parts1"), CONFIG.changed(precision=asked))
    assert found == CONFIG.changed(precision=chosen)
    said = capsys.readouterr().err
    assert f"{1e3 * bf16_s:.1f} ms in bfloat16, 1000.0 ms in float32" in said and said.count("\n") == 1


def test_what_needs_no_word(folder, monkeypatch, capsys):
    monkeypatch.setattr(model, "product_seconds", bf16_takes(0.5))
    sg = dgl_gt.load(folder / "parts1")
    for asked in ("bf16", "fp32"):
        assert with_measured_precision(sg, CONFIG.changed(precision=asked)).precision == asked
    assert capsys.readouterr().err == ""


def test_the_products_that_are_timed(folder):
    sg, state = dgl_gt.load(folder / "parts1"), torch.get_rng_state()
    assert all(
        product_seconds(sg, width, dtype) > 0 for width in (1, 4096) for dtype in (torch.float32, torch.bfloat16)
    )
    assert torch.equal(torch.get_rng_state(), state)  # a run draws the numbers that it draws without them


def on_rank(rank, shards):
    """Rank 0 finds bfloat16 faster, and rank 1 slower."""
    model.product_seconds = bf16_takes((0.5, 1.5)[rank])
    sg = dgl_gt.load(shards)
    return [train(sg, CONFIG.changed(precision=asked)).losses for asked in ("auto", "bf16")]


def test_ranks_agree(folder):
    for auto, bf16 in run_ranks(2, on_rank, folder / "parts2"):
        assert auto == bf16


def test_a_run_that_goes_on_keeps_its_precision(folder, tmp_path, monkeypatch):
    """Although this time the other one is faster."""
    sg, config = dgl_gt.load(folder / "parts1"), CONFIG.changed(precision="auto", checkpoint_every=1, epochs=3)
    monkeypatch.setattr(model, "product_seconds", bf16_takes(0.5))
    losses = train_and_save(sg, config, tmp_path / "run")[1].losses
    (tmp_path / "run" / "checkpoint-000002.safetensors").unlink(missing_ok=True)
    monkeypatch.setattr(model, "product_seconds", bf16_takes(1.5))
    assert train_and_save(sg, config.changed(epochs=4), tmp_path / "run", resume=True)[1].losses[:3] == losses
    assert read_config(tmp_path / "run" / "config.yaml").precision == "bf16"
    with pytest.raises(InputError, match="precision was 'bf16' and is now 'fp32'"):
        train_and_save(sg, config.changed(epochs=5, precision="fp32"), tmp_path / "run", resume=True)
    assert with_earlier_precision(sg.comm, config, tmp_path / "none").precision == "auto"
    earlier = tmp_path / "run" / "config.yaml"
    earlier.write_text(
        earlier.read_text().replace("metric: auto", "metric: my_metrics:worst")
    )  # a function of the user's
    assert with_earlier_precision(sg.comm, config, tmp_path / "run").precision == "bf16"
