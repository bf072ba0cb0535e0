"""Recording what agents do, so that it can be undone: the scope of a workflow, and a recorder for anything else."""

from amends.producers.outside import use
from amends.producers.recorder import RecordedStep, Recorder, recorder
from amends.producers.runtime import Runtime, default_runtime, set_default_runtime
from amends.producers.scope_flow import Failed, LeftOpen, Outcome, Succeeded, Turned, Unconfirmed
from amends.producers.settings import ProducerSettings
from amends.producers.story import Story
from amends.producers.workflow import workflow
from amends.tools.errors import AlreadyDone

__all__ = [
    "AlreadyDone",
    "Failed",
    "LeftOpen",
    "Outcome",
    "ProducerSettings",
    "RecordedStep",
    "Recorder",
    "Runtime",
    "Story",
    "Succeeded",
    "Turned",
    "Unconfirmed",
    "default_runtime",
    "recorder",
    "set_default_runtime",
    "use",
    "workflow",
]
