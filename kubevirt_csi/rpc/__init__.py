"""The gRPC transport of the driver: sockets, serving, and the one wrapper that every call passes through."""
