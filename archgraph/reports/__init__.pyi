from .page import report as report
from .plots import curves as curves
from .runs import read_run as read_run
