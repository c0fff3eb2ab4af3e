from .folder import read_metrics as read_metrics
from .trackers import Tracker as Tracker
