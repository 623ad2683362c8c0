"""Full-graph training over ranks: ``dgl_gt.train.trainer.train`` and what surrounds it."""
