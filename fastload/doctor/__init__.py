"""The doctor: what holds up anyone's loader, measured part by part, for ``fastload doctor``."""

from fastload.doctor.examination import Examination, examine
from fastload.doctor.progress_bar import ProgressBar
from fastload.doctor.script import ScriptError
from fastload.doctor.target import ExaminedLoader, find

__all__ = ["Examination", "ExaminedLoader", "ProgressBar", "ScriptError", "examine", "find"]
