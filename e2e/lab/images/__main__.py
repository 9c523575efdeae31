"""Makes the guest's image ahead of time: ``python -m e2e.lab.images`` prints where it is, as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from e2e.lab.images import ImageError, guest_image
from e2e.tools.build import BuildError


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m e2e.lab.images", description=__doc__).parse_args(arguments)
    start = time.monotonic()

    def progress(line: str) -> None:
        print(f"{time.monotonic() - start:7.1f} s  {line}", file=sys.stderr, flush=True)

    try:
        image = guest_image(progress=progress)
    except (BuildError, ImageError) as error:
        print(error, file=sys.stderr)
        return 1
    progress("done")
    print(json.dumps(image.to_config()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
