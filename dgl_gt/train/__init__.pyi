"""What type checkers read of the names that ``__init__.py`` loads lazily."""

from dgl_gt.model_config import GNNConfig as GNNConfig
from dgl_gt.model_config import GraphTransformerConfig as GraphTransformerConfig
from dgl_gt.model_config import PolynormerConfig as PolynormerConfig
from dgl_gt.run_files.run_record import RunRecord as RunRecord
from dgl_gt.train.config import CheckpointConfig as CheckpointConfig
from dgl_gt.train.config import ExchangeConfig as ExchangeConfig
from dgl_gt.train.config import OptimizerConfig as OptimizerConfig
from dgl_gt.train.config import TrainConfig as TrainConfig
from dgl_gt.train.config import read_config as read_config
from dgl_gt.train.model import ModelFactory as ModelFactory
from dgl_gt.train.run import train as train
from dgl_gt.train.run import train_and_save as train_and_save
from dgl_gt.train.run_state import TrainResult as TrainResult
from dgl_gt.train.saved_model import load_model as load_model
from dgl_gt.train.saved_model import predict as predict
from dgl_gt.train.saved_model import save_model as save_model
from dgl_gt.train.task_config import NodeClassificationConfig as NodeClassificationConfig
