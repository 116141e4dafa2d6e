"""What only a look into data and methods can tell: refused before anything is written or started."""

from pathlib import Path
from tempfile import TemporaryDirectory

from ops import roles, settings
from ops.paths import RunPaths
from ops.settings import Configuration


def refuse_unusable(configuration: Configuration) -> None:
    """BadConfiguration for whatever dispatcher, verifier or policy would refuse when they start."""
    from workers.dispatcher import sources
    from workers.dispatcher.rendering import Renderer
    from workers.policies.program import Program

    c = configuration
    settings.refuse_impossible(c)
    Program(c.policy)
    refuse_unknown_verifiers(c)
    with TemporaryDirectory() as scratch:
        folder = roles.prepare_model(c, RunPaths(Path(scratch) / "run"))
        sources.load(c.source, Renderer(folder, c.prompt), seed=c.run.seed)


def refuse_unknown_verifiers(configuration: Configuration) -> None:
    """Otherwise they would be noticed with the first answers only, a group at a time."""
    from workers.verifiers import registry

    for source in configuration.source:
        registry.build(source.verifier)
