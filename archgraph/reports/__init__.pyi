from .page import report as report
from .runs import read_run as read_run
