"""Hostile forms of the files that dgl-gt writes or is told to read: shards, models, checkpoints, settings, DGL's partitions."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import torch
import yaml
from case import RANK, TRAIN, Case, take
from damage import Dice, altered, damaged, hostile_array, json_text, safetensors, sign_files, signed
from yaml_texts import yaml_text

from dgl_gt.run_files.tensor_file import CHECKPOINT_FILE, MODEL_FILE, TensorFile


def manifests(dice, material):
    name = dice.pick(("shards1", "shards1", "shards2", "vertex2"))
    path = take(material, name) / "manifest.json"
    manifest = json.loads(path.read_text())
    if dice.chance(0.85):
        manifest = altered(manifest, dice)
        try:
            text = signed(manifest)
        except (ValueError, RecursionError):  # a number that JSON cannot write
            text = "{" * 1000
        if "@deep@" in text:
            text = json_text(manifest, dice)
        path.write_text(text, errors="surrogatepass")
    else:
        path.write_bytes(damaged(path.read_bytes(), dice))
    return _on_shards(dice, material, name)


def shard_files(dice, material):
    name = dice.pick(("shards1", "shards1", "shards2", "vertex2"))
    shards = take(material, name)
    part = shards / f"part{dice.below(2 if name != 'shards1' else 1)}"
    path = part / dice.pick(("structure", "structure", "node_data", "edge_data"))
    path = path.with_suffix(".safetensors")
    how = dice.below(12)
    if how == 0:
        path.unlink()
    elif how == 1:
        path.unlink()
        path.symlink_to("/dev/zero")
    elif how == 2:
        path.unlink()
        os.mkfifo(path)
    elif how < 6:
        _hostile_tensor(path, dice)
    else:
        path.write_bytes(safetensors(path.read_bytes(), dice))
    if how > 2 and dice.chance(0.8):
        sign_files(shards)
    return _on_shards(dice, material, name)


def _hostile_tensor(path: Path, dice: Dice) -> None:
    """One array of a safetensors file, changed in a way that the format allows."""
    from safetensors.numpy import load_file, save_file

    arrays = load_file(path)
    key = dice.pick(list(arrays) or ["extra"])
    hostile = hostile_array(arrays.get(key, np.arange(3)), dice)
    if hostile.dtype.kind in "biuf" and hostile.dtype.itemsize <= 8 and hostile.dtype.isnative:
        arrays[key] = np.ascontiguousarray(hostile)
    else:
        del arrays[key]
    save_file(arrays, path)


def _on_shards(dice, material, name: str) -> Case:
    """A command that reads ``in/NAME``."""
    shards = f"in/{name}"
    names = ("inspect", "inspect", "plan", "plan", "load", "load", "report", "export", "train", "train")
    match dice.pick(names[:-2] if name != "shards1" else names):
        case "inspect":
            return Case(argv=["inspect", shards])
        case "plan":
            return Case(argv=["plan", shards, *dice.pick(([], ["--max-depth", "2"], ["--rank-memory", "1GiB"]))])
        case "report":
            return Case(argv=["report", shards, "-o", "out/r.html"])
        case "export":
            return Case(argv=["export", shards, "out/dgl"])
        case "load":
            call = "dgl_gt.load" if name == "shards1" else "dgl_gt.partition.read_manifest"
            return Case(call=f"{call}({shards!r})")
        case _:
            take(material, "model")
            predict = ["predict", shards, "--model", "in/model", "--out", "out/p.csv"]
            return Case(argv=dice.pick((predict, [*TRAIN, *dice.pick(([], ["--out", "out/m"]))])), env=RANK)


def model_files(dice, material):
    model = take(material, "model")
    match dice.below(5):
        case 0:
            path = model / dice.pick([each.name for each in sorted(model.iterdir())])
            path.unlink()
            if dice.chance(0.5):
                path.symlink_to(dice.pick(("/dev/zero", path.name, ".")))
        case 1 | 2:
            path = model / "model.safetensors"
            content = path.read_bytes()
            path.write_bytes(
                safetensors(content, dice) if dice.chance(0.5) else _other_values(MODEL_FILE, content, dice)
            )
        case 3:
            path = model / "config.yaml"
            path.write_bytes(yaml_text(yaml.safe_load(path.read_text()), dice))
            return Case(argv=["report", "in/model", "-o", "out/r.html"])
        case 4:
            path = model / "record.json"
            path.write_text(json_text(altered(json.loads(path.read_text()), dice), dice), errors="surrogatepass")
            return Case(argv=dice.pick((["plan", "--check", "in/model"], ["report", "in/model", "-o", "out/r.html"])))
    take(material, "shards1")
    return Case(
        argv=["predict", "in/shards1", "--model", "in/model", "--out", dice.pick(("out/p.npz", "out/p.csv"))], env=RANK
    )


def checkpoints(dice, material):
    """A run with two checkpoints, of which the latest or both are damaged, some with a checksum that fits the damage."""
    take(material, "shards1")
    run = Path("out/run")
    shutil.copytree(material / "run", run)
    found = sorted(run.glob("checkpoint-*"))
    for path in found[-1:] if dice.chance(0.5) else found:
        match dice.below(6):
            case 0:
                path.unlink()
                path.symlink_to(dice.pick(("/dev/zero", path.name, ".")))
            case 1 | 2:
                path.write_bytes(_other_values(CHECKPOINT_FILE, path.read_bytes(), dice))
            case 3:
                path.write_bytes(damaged(path.read_bytes(), dice))
            case _:
                path.write_bytes(safetensors(path.read_bytes(), dice))
    words = ["--epochs", "3", "--hidden", "16", "--heads", "2", "--layers", "1", "--out", str(run), "--resume"]
    return Case(argv=["train", "in/shards1", *words], env=RANK)


def _other_values(kind: TensorFile, content: bytes, dice: Dice) -> bytes:
    """A file of this kind whose values or tensors are changed, and whose checksum is that of the change."""
    values, tensors = kind.unpack(content)
    if dice.chance(0.3):
        key = dice.pick(sorted(tensors))
        hostile = hostile_array(tensors[key].numpy(), dice)
        is_held = hostile.dtype.kind in "biuf" and hostile.dtype.itemsize <= 8 and hostile.dtype.isnative
        if is_held and np.isfinite(hostile).all():  # training would end at NaN, with a line in metrics.jsonl
            tensors[key] = torch.from_numpy(np.array(hostile)).clone(memory_format=torch.contiguous_format)
    else:
        values = altered(values, dice)
    try:
        return kind.pack(values, tensors)
    except (TypeError, ValueError, RecursionError):  # what JSON or safetensors cannot hold
        return b""


def config_files(dice, material):
    tree = yaml.safe_load((material / "config.yaml").read_text())
    Path("in/config.yaml").write_bytes(yaml_text(tree, dice))
    if dice.chance(0.6):
        take(material, "shards1")
        return Case(argv=["train", "in/shards1", "--epochs", "1", "--config", "in/config.yaml"], env=RANK)
    take(material, "shards2")
    return Case(argv=["plan", "in/shards2", "--config", "in/config.yaml"])


def profiles(dice, material):
    two = dice.chance(0.5)
    tree = yaml.safe_load((material / ("profile2.yaml" if two else "profile.yaml")).read_text())
    Path("in/p.yaml").write_bytes(yaml_text(tree, dice))
    if dice.chance(0.3):
        return Case(call="dgl_gt.plan.read_profile('in/p.yaml')")
    shards = take(material, dice.pick(("shards1", "shards2", "vertex2")))
    if dice.chance(0.1) and shards.name == "shards1":
        return Case(argv=[*TRAIN, "--strategy", "auto", "--profile", "in/p.yaml"], env=RANK)
    return Case(argv=["plan", str(shards), "--profile", "in/p.yaml"])


def dgl_directories(dice, material):
    folder = take(material, "dgl")
    path = folder / "dgl.json"
    if dice.chance(0.8):
        path.write_text(json_text(altered(json.loads(path.read_text()), dice), dice), errors="surrogatepass")
    else:
        files = sorted(each for each in folder.rglob("*") if each.is_file())
        path = dice.pick(files)
        path.write_bytes(damaged(path.read_bytes(), dice))
    return Case(argv=["import", "in/dgl/dgl.json", "--out", "out/shards"])
