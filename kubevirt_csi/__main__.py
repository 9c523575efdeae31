"""``python -m kubevirt_csi``, the same as the console script."""

import sys

from kubevirt_csi.cli import main

sys.exit(main())
