"""Name the leaker of a suspect, or nobody, with a bound on the probability of accusing an innocent."""

from tramark.tracing.suspect import NO_ANSWER, Answers, Suspect
from tramark.tracing.verdict import Step, Verdict, trace

__all__ = ["NO_ANSWER", "Answers", "Step", "Suspect", "Verdict", "trace"]
