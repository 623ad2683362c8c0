"""The rating that one user gives another, beside an MLP of both users' degrees and mean ratings: bitcoin_otc.

    python benchmarks/ratings.py [--splits 5]

Each split holds out a tenth of the ratings for validation and a tenth for the test. All that is computed of ratings is of
those of training: of a user the number, mean and deviation of ratings given and received, and the user's bias; of a pair
the rating in the other direction, and sums over users between them. For a rating of training, they are computed without it
and a tenth of the others, so that it cannot be read from them. A graph transformer reads the degrees, and its decoder of
edges and its bias of attention the rest.
"""

from __future__ import annotations

import argparse
import tempfile

import numpy as np
import torch
from machine import DATA, processor
from scipy import sparse
from torch import nn

import dgl_gt
from dgl_gt.partition import from_edges, partition
from dgl_gt.partition.console import table
from dgl_gt.train import read_config, train

FOLDS = 10
SETTINGS = {
    "task": "edge_regression",
    "label": "rating",
    "metric": "rmse",
    "loss": "huber",
    "hidden": 64,
    "dropout": 0.3,
}
SETTINGS |= {"lr": 0.01, "epochs": 200, "evaluate_every": 2, "patience": 0, "edge_features": "pair:number"}


class Ratings:
    """What some of the ratings say of each pair of users, (E, ...): ``simple``, degrees and means, and ``all``."""

    def __init__(self, src, dst, rating, count, is_train):
        self.src, self.dst, self.count = src, dst, count
        self.of_train = src[is_train], dst[is_train]
        known, self.mean = rating[is_train], rating[is_train].mean()
        given, received = (self._summed(ends, known) for ends in self.of_train)
        simple = np.stack([*given[:2], *received[:2]], 1)
        biases, left = np.zeros((2, count)), known - self.mean
        for _ in range(20):
            for side, ends in enumerate(self.of_train):
                left = known - self.mean - biases[1 - side, self.of_train[1 - side]]
                biases[side] = np.bincount(ends, left, count) / (np.bincount(ends, minlength=count) + 3)
        rows = np.stack([*given, *received, *biases], 1)
        back = [self._at(self._matrix(each).T) for each in (known, np.ones_like(known))]
        self.all = np.column_stack([rows[src], rows[dst], *back, self._paths(known)])
        self.simple = np.column_stack([simple[src], simple[dst]])

    def _summed(self, ends, known):
        """The number, mean and deviation of the ratings of each user."""
        number = np.bincount(ends, minlength=self.count)
        mean = (np.bincount(ends, known, self.count) + self.mean) / (number + 1)
        square = np.bincount(ends, known**2, self.count) / np.maximum(number, 1)
        plain = np.bincount(ends, known, self.count) / np.maximum(number, 1)
        return np.log1p(number), mean, np.sqrt(np.maximum(square - plain**2, 0))

    def _matrix(self, values):
        return sparse.csr_matrix((values, self.of_train), (self.count, self.count))

    def _at(self, matrix):
        return np.asarray(matrix.tocsr()[self.src, self.dst]).ravel()

    def _paths(self, known):
        """Sums over the users between two, of ones and of ratings, in all directions."""
        ones, ratings = self._matrix(np.ones_like(known)), self._matrix(known)
        steps = ((ones, ratings), (ones, ones), (ratings, ratings), (ones.T, ratings), (ones.T, ones))
        steps += ((ones, ratings.T), (ones, ones.T), (ratings.T, ratings), (ones.T, ratings.T), (ones.T, ones.T))
        sums = np.stack([self._at(first @ second) for first, second in steps], 1)
        return np.sign(sums) * np.log1p(np.abs(sums))


def crossed(src, dst, rating, count, is_train, kind):
    """What the ratings of training say of each pair, (E, ...); those of training are left out with a tenth of the others."""
    found = getattr(Ratings(src, dst, rating, count, is_train), kind)
    fold = np.random.default_rng(0).integers(0, FOLDS, len(src))
    for each in range(FOLDS):
        of_others = getattr(Ratings(src, dst, rating, count, is_train & (fold != each)), kind)
        found[is_train & (fold == each)] = of_others[is_train & (fold == each)]
    return found


def scaled(x, rows=slice(None)):
    return ((x - x[rows].mean(0)) / (x[rows].std(0) + 1e-6)).astype(np.float32)


def rmse_of_mlp(x, rating, masks, seed):
    """The test error of an MLP of rows of pairs, at the epoch with the least error in validation."""
    torch.manual_seed(seed)
    x, y = torch.from_numpy(scaled(x, masks[0])), torch.from_numpy(rating)
    layers = nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    model, best = nn.Sequential(*layers), (np.inf, np.inf)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003, weight_decay=1e-4)
    for _ in range(300):
        model.train()
        loss = (model(x[masks[0]])[:, 0] - y[masks[0]]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            errors = (model(x)[:, 0] - y).square()
        best = min(best, tuple(float(errors[mask].mean().sqrt()) for mask in masks[1:]))
    return best[1]


def rmse_of_model(src, dst, count, x, rating, masks, seed):
    data = {f"{name}_mask": mask for name, mask in zip(("train", "val", "test"), masks)}
    data |= {"pair": scaled(x, masks[0]), "rating": rating}
    degrees = np.stack([np.bincount(ends, minlength=count) for ends in (src, dst)], 1)
    graph = from_edges(src, dst, count, {"feat": scaled(np.log1p(degrees))}, data)
    with tempfile.TemporaryDirectory() as folder:
        partition(graph, 1, f"{folder}/shards")
        return train(dgl_gt.load(f"{folder}/shards"), read_config(**SETTINGS, seed=seed)).test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    args = parser.parse_args()
    graph = np.load(DATA / "bitcoin_otc.npz")
    (src, dst), rating = graph["edge_index"].astype(np.int64), graph["rating"].astype(np.float32)
    count, found = int(graph["num_nodes"]), []
    for split in range(args.splits):
        place = np.random.default_rng(split).random(len(src))
        masks = place < 0.8, (place >= 0.8) & (place < 0.9), place >= 0.9
        plain = Ratings(src, dst, rating, count, masks[0]).simple
        simple, every = (crossed(src, dst, rating, count, masks[0], kind) for kind in ("simple", "all"))
        errors = [rmse_of_mlp(each, rating, masks, split) for each in (plain, simple, every)]
        found.append([*errors, rmse_of_model(src, dst, count, every, rating, masks, split)])
    means, deviations = np.mean(found, 0), np.std(found, 0)
    names = (
        "MLP of degrees and mean ratings",
        "the same, without the rating itself",
        "MLP of all",
        "graph transformer",
    )
    rows = [[name, f"{a:.3f} ± {b:.3f}", f"{a / means[0] - 1:+.1%}"] for name, a, b in zip(names, means, deviations)]
    print(f"{processor()}\n\n{table(['bitcoin_otc', 'test RMSE', 'to the first'], rows)}")


if __name__ == "__main__":
    main()
