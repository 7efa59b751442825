"""``Untouchable``: stands for what a forked child must not destroy, such as an event of CUDA's."""

import os


class Untouchable:
    """Aborts the process that destroys it, if it was made in another one."""

    def __init__(self):
        self.owner = os.getpid()

    def __del__(self):
        if os.getpid() != self.owner:
            os.abort()
