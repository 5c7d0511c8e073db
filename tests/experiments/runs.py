"""Planned runs, carried out."""

from nanode.experiments.execution import outcomes


def execute(planned, root, **options):
    """The records of planned runs, all of which are over."""
    return [outcome.record for outcome in outcomes(planned, root, **options)]
