from .spec import StudySpec as StudySpec
from .spec import load_study as load_study
from .study import study as study
