"""Triton's interpreter, in half the time.

It patches ``triton.language`` at each launch, and again at each call of a helper. Here that is done once, for good.
"""

from functools import cache

import triton.language as tl  # noqa: F401  (the interpreter patches what a function's globals call the language)
from triton.language import core  # noqa: F401
from triton.runtime import interpreter


@cache
def patch_once() -> None:
    interpreter._patch_lang(patch_once.__wrapped__)
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()  # of nothing, so that nothing is restored
