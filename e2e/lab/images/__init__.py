"""What the lab's machines boot, and the container images inside it, made on this machine and cached by content.

Needs root, the Debian packages of e2e/lab/packages.txt and, the first time, Debian's and Python's package sources.
Nothing here knows how a machine is run or what a cluster is.
"""

from e2e.lab.images.commands import ImageError
from e2e.lab.images.containers import BUSYBOX_IMAGE, PAUSE_IMAGE
from e2e.lab.images.driver import NODE_IMAGE
from e2e.lab.images.guest import GuestImage, bare_image, guest_image

__all__ = ["BUSYBOX_IMAGE", "NODE_IMAGE", "PAUSE_IMAGE", "GuestImage", "ImageError", "bare_image", "guest_image"]
