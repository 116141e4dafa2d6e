"""What went wrong, out of the heap of errors that a group of tasks leaves behind."""

from broker.errors import Replaced, SluiceError


def first_of(errors: BaseExceptionGroup) -> BaseException:
    """The most telling one: being replaced explains everything else, a plain error beats a bug."""
    leaves: list[BaseException] = []
    queue: list[BaseException] = [errors]
    while queue:
        one = queue.pop(0)
        if isinstance(one, BaseExceptionGroup):
            queue += one.exceptions
        else:
            leaves.append(one)
    order = (Replaced, SluiceError, Exception)
    return next((leaf for kind in order for leaf in leaves if isinstance(leaf, kind)), leaves[0])
