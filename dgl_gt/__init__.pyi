"""What type checkers read of the names that ``__init__.py`` loads lazily."""

from dgl_gt.comm.failure import RankError as RankError
from dgl_gt.comm.group import Comm as Comm
from dgl_gt.exchange.load import load as load
from dgl_gt.exchange.sharded_graph import ShardedGraph as ShardedGraph
from dgl_gt.exchange.typed_graphs import typed_graph as typed_graph
from dgl_gt.ops.attention import sparse_attention as sparse_attention
from dgl_gt.ops.merge import merge as merge
from dgl_gt.partition.errors import InputError as InputError
from dgl_gt.plan.step_costs import report_costs as report_costs
from dgl_gt.ranks.launch_function import launch as launch
from dgl_gt.structure import CSC as CSC
from dgl_gt.structure import csc as csc

from . import nn as nn
from . import partition as partition
from . import plan as plan
from . import pyg as pyg
from . import report as report
from . import train as train

__version__: str
