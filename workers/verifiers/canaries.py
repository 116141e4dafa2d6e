"""Known pairs, judged before any work is taken: a grader that gets one of them wrong judges nothing."""

from workers.verifiers import registry
from workers.verifiers.pool import Pool
from workers.verifiers.protocol import GraderBroken


async def check(pool: Pool) -> int:
    """Judge the canaries of every built-in verifier through the pool; how many there were.

    Raises GraderBroken naming the first that differs.
    """
    judged = 0
    for name in registry.BUILTIN:
        for canary in registry.verifier_class(name).canaries:
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
