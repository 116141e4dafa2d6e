"""Known pairs, judged before any work is taken: a grader that gets one of them wrong judges nothing."""

from broker.errors import BadConfiguration
from workers.verifiers import registry
from workers.verifiers.pool import Pool
from workers.verifiers.protocol import Canary, GraderBroken


async def check(pool: Pool) -> int:
    """Judge the canaries of every built-in verifier through the pool; how many there were.

    One that needs what is not installed has none: it refuses whoever asks for it.
    Raises GraderBroken naming the first that differs.
    """
    judged = 0
    for name in registry.BUILTIN:
        for canary in _of(name):
            graded = await pool.grade({"name": name}, canary.target, {0: canary.response})
            finding = graded.findings.get(0)
            score = finding.score if finding else None
            if score != canary.score:
                detail = graded.broken or (finding.detail if finding else "")
                raise GraderBroken(
                    f"verifier {name}: target {canary.target!r}, answer {canary.response!r}: "
                    f"score {score}, expected {canary.score} ({detail})"
                )
            judged += 1
    return judged


def _of(name: str) -> tuple[Canary, ...]:
    canaries = registry.verifier_class(name).canaries
    if not canaries:
        return ()
    try:
        registry.build(name).ready()
    except BadConfiguration:
        return ()
    return canaries
