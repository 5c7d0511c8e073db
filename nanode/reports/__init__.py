"""Records of runs to tables, figures and pages; nothing is trained here."""

from nanode.reports.claims import Claim, Verdict, judge
from nanode.reports.records import Cell, find_record
from nanode.reports.statistics import Spread, spread

__all__ = ["Cell", "Claim", "Spread", "Verdict", "find_record", "judge", "spread"]
