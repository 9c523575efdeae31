"""Which version of the driver this is. The package's build reads it here, so that no process has to look it up."""

VERSION = "0.1.0.dev0"
