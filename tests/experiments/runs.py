"""Planned runs, carried out."""

from dataclasses import dataclass

from nanode.experiments import Options, Planned, reproduce


@dataclass
class Fixed:
    """An experiment whose plan is given."""

    planned: list[Planned]

    def plan(self, options, root=None):
        return list(self.planned)


def outcomes(planned, root, *, stop=lambda: False, **more):
    """Carry out planned runs until all are over, or until ``stop()`` is true."""
    return reproduce(Fixed(planned), root, Options(), asked=stop, **more)


def execute(planned, root, **more):
    """The records of planned runs, all of which are over."""
    return [outcome.record for outcome in outcomes(planned, root, **more)]
