"""What type checkers read of the names that ``__init__.py`` loads lazily."""

from dgl_gt.report.of_directory import Report as Report
from dgl_gt.report.of_directory import report as report
