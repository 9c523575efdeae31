"""Values and rules without I/O: nothing here awaits, opens a file or knows an API client."""
