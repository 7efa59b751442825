"""Play the adversary with random programs for as long as wanted, or one of them again.

python -m tests.adversary.soak --seconds 60
python -m tests.adversary.soak --seed 12345
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.adversary.program import Program, play

REPORT_EVERY = 30.0


def drawn(seed: int) -> tuple[Program, bytes]:
    """The program and the schedule that a seed stands for."""
    generator = random.Random(seed)
    return Program.drawn(generator.randbytes(96)), generator.randbytes(generator.choice([64, 512, 2048]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long to play")
    parser.add_argument("--seed", type=int, help="play this one only")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        is_well = plays_well(arguments.seed)
        print(f"seed {arguments.seed}: {0 if is_well else 1} findings")
        return int(not is_well)
    start = time.monotonic()
    report_at = REPORT_EVERY
    first = seed = random.SystemRandom().randrange(2**48)
    findings = 0
    while (elapsed := time.monotonic() - start) < arguments.seconds:
        findings += not plays_well(seed)
        seed += 1
        if elapsed > report_at:
            print(f"{elapsed:.0f} s: {seed - first} interleavings, {findings} findings", flush=True)
            report_at += REPORT_EVERY
    print(f"adversary: {seed - first} interleavings from seed {first}, {findings} findings")
    return int(findings > 0)


def plays_well(seed: int) -> bool:
    program, schedule = drawn(seed)
    try:
        play(program, schedule)
    except Exception as finding:  # noqa: BLE001  (an error of another kind is a finding too)
        print(f"FOUND: {finding!r}\n  {program}\n  again: python -m tests.adversary.soak --seed {seed}", flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
