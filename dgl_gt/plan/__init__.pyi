"""What type checkers read of the names that ``__init__.py`` loads lazily."""

from dgl_gt.partition.figures.profile import PRESETS as PRESETS
from dgl_gt.partition.figures.profile import Profile as Profile
from dgl_gt.partition.figures.profile import read_profile as read_profile
from dgl_gt.plan.candidates import Candidate as Candidate
from dgl_gt.plan.candidates import NothingFits as NothingFits
from dgl_gt.plan.candidates import Plan as Plan
from dgl_gt.plan.commands import calibrate as calibrate
from dgl_gt.plan.commands import plan as plan
from dgl_gt.plan.planned_step import tracer_of as tracer_of
from dgl_gt.plan.policy_search import search_policy as search_policy
from dgl_gt.plan.select import choose as choose
from dgl_gt.plan.step_costs import StepCosts as StepCosts
from dgl_gt.plan.step_costs import report_costs as report_costs
from dgl_gt.plan.tracer import Tracer as Tracer
from dgl_gt.plan.trial import load_fastest as load_fastest
