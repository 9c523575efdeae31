"""Small Protocols between the operations and the outside world.

Each method says what is *not* an error. Waiting, retrying and idempotency are the operations' business, never a port's.
"""
