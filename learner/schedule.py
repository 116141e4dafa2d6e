"""The learning rate of a step."""

from learner.settings import LearnerSettings


def learning_rate(settings: LearnerSettings, done: float) -> float:
    """Rate of a step before which the fraction `done` of the run's steps, 0 <= done < 1, was taken.

    `linear` falls from `learning_rate` towards zero at the run's end: the noise of single batches,
    which a constant rate leaves in the weights, is averaged out.
    """
    return settings.learning_rate * (1 - done if settings.schedule == "linear" else 1)
