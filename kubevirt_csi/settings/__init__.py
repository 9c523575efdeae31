"""What a role is told at its start: frozen values, checked once, from flags with environment fall-backs.

Nothing here touches a file or an API, and nothing reads the environment afterwards. ``roles`` has the values,
``arguments`` the flags that make them.
"""

from kubevirt_csi.observe.address import HttpAddress
from kubevirt_csi.settings.roles import ControllerSettings, NodeIdSettings, NodeSettings

__all__ = ["ControllerSettings", "HttpAddress", "NodeIdSettings", "NodeSettings"]
