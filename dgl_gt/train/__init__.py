"""Full-graph training over ranks. Each name below is loaded at its first use: a mere import loads no torch."""

from dgl_gt.partition.lazy_names import lazy_names

_HOMES = {
    "TrainConfig": "dgl_gt.train.config",
    "NodeClassificationConfig": "dgl_gt.train.task_config",
    "EdgeClassificationConfig": "dgl_gt.train.task_config",
    "NodeMultilabelConfig": "dgl_gt.train.task_config",
    "EdgeMultilabelConfig": "dgl_gt.train.task_config",
    "NodeRegressionConfig": "dgl_gt.train.task_config",
    "EdgeRegressionConfig": "dgl_gt.train.task_config",
    "LinkPredictionConfig": "dgl_gt.train.task_config",
    "PretrainConfig": "dgl_gt.train.task_config",
    "OptimizerConfig": "dgl_gt.train.config",
    "ExchangeConfig": "dgl_gt.train.config",
    "CheckpointConfig": "dgl_gt.train.config",
    "GNNConfig": "dgl_gt.model_config",
    "GraphTransformerConfig": "dgl_gt.model_config",
    "PolynormerConfig": "dgl_gt.model_config",
    "read_config": "dgl_gt.train.config",
    "train": "dgl_gt.train.run",
    "fit": "dgl_gt.train.loop",
    "NodeClassification": "dgl_gt.train.tasks.classification",
    "NodeMultilabel": "dgl_gt.train.tasks.multilabel",
    "NodeRegression": "dgl_gt.train.tasks.regression",
    "EdgeClassification": "dgl_gt.train.tasks.classification",
    "EdgeMultilabel": "dgl_gt.train.tasks.multilabel",
    "EdgeRegression": "dgl_gt.train.tasks.regression",
    "LinkPrediction": "dgl_gt.train.tasks.prediction",
    "Pretrain": "dgl_gt.train.tasks.pretrain",
    "train_and_save": "dgl_gt.train.run",
    "TrainResult": "dgl_gt.train.run_state",
    "RunRecord": "dgl_gt.run_files.run_record",
    "export_model": "dgl_gt.train.export",
    "load_model": "dgl_gt.train.saved_model",
    "save_model": "dgl_gt.train.saved_model",
    "predict": "dgl_gt.train.predictions",
    "embed": "dgl_gt.train.predictions",
    "score_pairs": "dgl_gt.train.predictions",
    "ModelFactory": "dgl_gt.train.model",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
