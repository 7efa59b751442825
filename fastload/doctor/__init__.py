"""The doctor: what holds up anyone's loader, measured part by part, for ``fastload doctor``."""

from fastload.doctor.examination import Examination, examine
from fastload.doctor.script import ScriptError
from fastload.doctor.target import Target, find

__all__ = ["Examination", "ScriptError", "Target", "examine", "find"]
